"""Progressive Neural Networks (PNN).

Paper: Rusu et al., "Progressive Neural Networks", 2016, https://arxiv.org/abs/1606.04671
Each task has a net of its own, a column with fresh weights. It also gets, through lateral adapters, the
outputs of each stage of all earlier columns, which are frozen. The task of a sample selects the column that
answers, so there is no Class-IL.
Between maps an adapter is a scale for each channel, a 1 x 1 convolution, ReLU and a residual block with
stride 2 and no last ReLU; between vectors it is a scale, a linear layer, ReLU and a linear layer without
bias. By our reading, later columns start with PyTorch's default weights.
Differences from a widely used port: laterals reach all earlier columns, and these compute what they computed
when they were trained, their own laterals and batch-norm statistics included.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu
from torch.optim import Optimizer

from strongreplay.methods.base import Method, MethodConfig, Problem, SavedGenerator, descend
from strongreplay.methods.expansion import FrozenNets, add_missing, notice_of_size, reset_module
from strongreplay.nets import Classifier, seeded_init
from strongreplay.nets.resnet import BasicBlock
from strongreplay.nets.stages import StagePair, stage_pairs
from strongreplay.protocol import Batch, Task, Terms


class PNNConfig(MethodConfig):
    pass


class Lateral(nn.Module):
    """From the outputs of earlier columns to what is added in this one."""

    def __init__(self, num_old: int, width: int, num_out: int, is_map: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(0.1 * torch.rand(num_old * width))
        self.join: nn.Module = nn.Linear(num_old * width, width)
        self.out: nn.Module = nn.Linear(width, num_out, bias=False)
        if is_map:
            self.join, block = nn.Conv2d(num_old * width, width, 1), BasicBlock(width, num_out, 2)
            block.outer = nn.Identity()
            self.out = block

    def forward(self, outputs: list[Tensor]) -> Tensor:
        joined = torch.cat(outputs, 1)
        scale = self.scale[:, None, None] if joined.dim() == 4 else self.scale
        added: Tensor = self.out(relu(self.join(scale * joined)))
        return added


class Column(nn.Module):
    """The net of a task, with laterals from all columns before it; the first has none."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        stage_pairs(classifier, "pnn")  # refuse other nets now
        self.classifier, self.laterals = classifier, nn.ModuleList()

    @property
    def stage_pairs(self) -> list[StagePair]:
        return stage_pairs(self.classifier, "pnn")

    def start(self, num_old: int, generator: torch.Generator) -> None:
        """Fresh weights, and laterals from `num_old` columns."""
        head = self.classifier.head
        reset_module(self.classifier, generator)
        with seeded_init(generator):
            laterals = [Lateral(num_old, p.width, p.next_width, p.is_map) for p in self.stage_pairs]
            laterals.append(Lateral(num_old, head.in_features, head.out_features, False))
        made = nn.ModuleList(laterals).to(head.weight.device, head.weight.dtype).train(self.training)
        self.laterals = made.requires_grad_(head.weight.requires_grad)

    def forward(self, inputs: Tensor, earlier: list[list[Tensor]]) -> tuple[Tensor, list[Tensor]]:
        """Logits, and the outputs of all stages; `earlier` are such outputs of each column before this."""
        outputs: list[Tensor] = []
        with self.joined(earlier, outputs):
            features = self.classifier.features(inputs)
        outputs.append(features)
        logits: Tensor = self.classifier.head(features)
        if earlier:
            logits = logits + self.laterals[-1]([old[-1] for old in earlier])
        return logits, outputs

    @contextmanager
    def joined(self, earlier: list[list[Tensor]], outputs: list[Tensor]) -> Iterator[None]:
        """Within the context the classifier adds the laterals, and its stages are recorded in `outputs`."""
        hooks = []
        for number, pair in enumerate(self.stage_pairs):

            def add(
                module: nn.Module, args: Any, output: Tensor, n: int = number, p: StagePair = pair
            ) -> Tensor:
                summed = output + self.laterals[n]([old[n] for old in earlier])
                return relu(summed) if p.is_map else summed  # between vectors the activation comes next

            if earlier:
                hooks.append(pair.target.register_forward_hook(add))
        for pair in self.stage_pairs:  # after all laterals, so that a stage is recorded with what it got
            hooks.append(pair.source.register_forward_hook(lambda m, args, output: outputs.append(output)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Submodules are loaded after this call, so the laterals must have the sizes of the state.
        saved = state_dict.get(prefix + "laterals.0.scale")
        width = self.stage_pairs[0].width
        if saved is None:
            self.laterals = nn.ModuleList()
        else:
            self.start(len(saved) // width, torch.Generator())  # overwritten at once
        super()._load_from_state_dict(state_dict, prefix, *args)


class PNN(Method):
    net: Column
    owner: Tensor
    current: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: PNNConfig | None = None) -> None:
        super().__init__()
        self.net = Column(net)  # type: ignore[arg-type]
        self.frozen, self.num_tasks = FrozenNets(self.net), problem.num_tasks
        self.draws = SavedGenerator(problem.generator("columns"))
        # (C,) the column that knows each class; -1 before its task is learnt
        self.register_buffer("owner", torch.full((problem.num_classes,), -1))
        # (C,) classes of this task; all before the first one
        self.register_buffer("current", torch.ones(problem.num_classes, dtype=torch.bool))

    def notice(self) -> str:
        return notice_of_size("pnn", self.net, self.num_tasks)

    def begin_task(self, task: Task) -> Task:
        self.current.zero_()[list(task.classes)] = True
        if (self.owner >= 0).any():
            self.frozen.take()
            self.net.start(len(self.frozen.nets), self.draws.generator)
        return task

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        add_missing(optimizer, self.net)
        logits = self.columns(batch.inputs)[-1].masked_fill(~self.current, -torch.inf)
        return descend(optimizer, {"current": cross_entropy(logits, batch.labels)})

    def columns(self, inputs: Tensor) -> list[Tensor]:
        """The logits of each column, the one in training last."""
        earlier: list[list[Tensor]] = []
        answers = []
        nets: list[Any] = list(self.frozen.nets)
        with torch.no_grad():
            for net in nets:
                logits, outputs = net.copy(inputs, earlier)
                earlier.append(outputs)
                answers.append(logits)
        return [*answers, self.net(inputs, earlier)[0]]

    def end_task(self, task: Task) -> None:
        self.owner[list(task.classes)] = len(self.frozen.nets)

    def predict(self, inputs: Tensor) -> Tensor:
        """Each class's score from the column of its task; scores of different tasks are not comparable."""
        *old, scores = self.columns(inputs)
        for number, logits in enumerate(old):
            scores = torch.where(self.owner == number, logits, scores)
        return scores
