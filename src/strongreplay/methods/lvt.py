"""Lifelong Vision Transformer (LVT), a reconstruction.

Paper: Wang et al., "Continual Learning with Lifelong Vision Transformer", CVPR 2022.
Reference: none; the authors published no code. The idea, the two heads and the form of each term are theirs.
The following choices are ours, so results may differ from the published ones:
- distillation is KL(stored || now) at temperature 2, without the factor T^2, over the classes seen when the
  logits were stored; `dark="mse"` compares logits over the same classes;
- stored logits are never updated; `teacher="frozen"` uses the net at the end of the last task instead;
- the accumulation head weights the loss of the stream's batch by 0.9^(number of finished tasks);
- importance of keys and position tables: mean absolute gradient of the injection loss over the last task's
  batches (plain images, evaluation mode), scaled to mean 1; signed gradients would cancel at a minimum;
- stream and replayed samples pass the net as one batch, so that batch norm sees both; replay starts with the
  second task;
- the injection head is re-initialised after every task (`reinit_injection`);
- memory slots left over after an equal division go to the newest classes, one each.
The file is long because these choices are written out, and because no other method chooses its memory so.
"""

from collections.abc import Iterable
from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div
from torch.optim import Optimizer

from strongreplay.errors import ConfigError
from strongreplay.memory import Memory, take_ids
from strongreplay.methods.base import (
    Method,
    OldNet,
    Problem,
    ReplayConfig,
    SavedGenerator,
    check_one_a_class,
    descend,
    evaluation_mode,
    predict_all,
    replay_count,
)
from strongreplay.methods.samples import TaskLogitSamples
from strongreplay.nets.lvt import LVTNet
from strongreplay.protocol import Batch, Split, Task, Terms

MINIBATCH = 32  # batch size of the importance: the published one, independent of that of training
NEVER = torch.iinfo(torch.int64).max


class LVTConfig(ReplayConfig):
    memory_size: int = Field(200, ge=1, description="samples kept, shared equally by all seen classes")
    replay_weight: float = Field(0.5, ge=0, description="weight of the loss on replayed labels")
    dark_weight: float = Field(0.4, ge=0, description="weight of the distance to old logits")
    attention_weight: float = Field(1e-4, ge=0, description="weight of the penalty on changed attention")
    fading: float = Field(
        0.9, gt=0, le=1, description="decay per task of the current loss in the accumulation head"
    )
    dark: Literal["kl", "mse"] = Field("kl", description="distance to old logits")
    teacher: Literal["stored", "frozen"] = Field(
        "stored", description="old logits: stored with the sample, or of the net at the last task's end"
    )
    temperature: float = Field(2.0, gt=0, description="temperature of the distance kl")
    reinit_injection: bool = Field(True, description="re-initialise the injection head after every task")


class LVT(Method):
    net: LVTNet
    anchor: Tensor
    importance: Tensor
    met_in: Tensor

    def __init__(self, net: nn.Module, problem: Problem, config: LVTConfig | None = None) -> None:
        super().__init__()
        self.config = config or LVTConfig()
        check_one_a_class("lvt", self.config.memory_size, problem)
        self.net = with_attention(net)
        self.old_net = OldNet(net) if self.config.teacher == "frozen" else None
        self.view, self.plain_view = problem.train_view, problem.test_view
        # Logits: of the accumulation head, at the end of the task whose number is stored
        self.memory = Memory(TaskLogitSamples, self.config.memory_size, problem.generator("memory"))
        self.draws = SavedGenerator(problem.generator("injection head"))
        self.finished = 0  # t, number of finished tasks
        self.register_buffer("anchor", self.attention().detach())  # (P,) K and Bp at the last task's end
        self.register_buffer("importance", torch.zeros_like(self.anchor))  # (P,) G
        self.register_buffer("met_in", torch.full((problem.num_classes,), NEVER))  # (C,) task of each class

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        net, count, inputs = self.net, len(batch), batch.inputs
        replayed = self.memory.sample(replay_count(self.config, batch)) if self.finished else None
        if replayed:
            inputs = torch.cat([inputs, self.view(replayed.images)])
        features = net.features(inputs)
        logits = net.head(features)
        current = cross_entropy(logits[:count], batch.labels)
        terms = {
            "injection": cross_entropy(net.injection(features[:count]), batch.labels),
            "current": self.config.fading**self.finished * current,
        }
        if replayed:
            terms |= self.hold(inputs[count:], logits[count:], replayed)
        return descend(optimizer, terms)

    def hold(self, inputs: Tensor, logits: Tensor, replayed: TaskLogitSamples) -> Terms:
        """The terms against forgetting; they have no gradient for the injection head."""
        config, (target, seen) = self.config, self.old_answer(inputs, replayed)
        return {
            "replay": config.replay_weight * cross_entropy(logits, replayed.labels),
            "dark": config.dark_weight * self.distance(logits, target, seen),
            "attention": config.attention_weight * self.attention_change(),
        }

    def old_answer(self, inputs: Tensor, replayed: TaskLogitSamples) -> tuple[Tensor, Tensor]:
        """(m, C) old logits, and (m, C) or (1, C) which classes had been seen when they were computed."""
        if self.old_net:
            return self.old_net(inputs), (self.met_in != NEVER)[None]
        return replayed.logits, self.met_in <= replayed.tasks[:, None]

    def distance(self, logits: Tensor, target: Tensor, seen: Tensor) -> Tensor:
        """Mean distance over samples, over the seen classes only."""
        if self.config.dark == "mse":
            seen = seen.expand_as(logits)
            return ((logits - target).square() * seen).sum() / seen.sum()
        now, old = (
            (scores / self.config.temperature).masked_fill(~seen, -torch.inf) for scores in (logits, target)
        )
        # Unseen classes have probability 0; their log-probability is set to 0, because 0 * -inf is NaN.
        return kl_div(now.log_softmax(1).masked_fill(~seen, 0), old.softmax(1), reduction="batchmean")

    def attention(self) -> Tensor:
        """(P,) keys K and position tables Bp as one vector."""
        return flat(self.net.attention_parameters())

    def attention_change(self) -> Tensor:
        """L1 norm of the change of keys and tables since the last task, weighted by importance."""
        return (self.importance * (self.attention() - self.anchor)).abs().sum()

    def end_task(self, task: Task) -> None:
        train = task.train.to(self.anchor.device)
        self.importance.copy_(self.measure_importance(train))
        self.anchor.copy_(self.attention().detach())
        self.remember(task.classes, train)
        if self.old_net:
            self.old_net.take()
        if self.config.reinit_injection:
            weight = self.net.injection.weight.detach()
            fresh = torch.empty(weight.shape)
            nn.init.kaiming_normal_(fresh, nonlinearity="linear", generator=self.draws.generator)
            weight.copy_(fresh)
        self.finished += 1

    def measure_importance(self, train: Split) -> Tensor:
        """(P,) mean absolute gradient of the injection loss, scaled to mean 1."""
        total, parameters = torch.zeros_like(self.anchor), self.net.attention_parameters()
        with evaluation_mode(self.net):
            for rows in torch.arange(len(train)).split(MINIBATCH):
                batch = train.take(rows.to(total.device))
                logits = self.net.injection(self.net.features(self.plain_view(batch.inputs)))
                gradients = torch.autograd.grad(cross_entropy(logits, batch.labels), parameters)
                total += flat(gradients).abs()
        return total / total.mean().clamp(min=torch.finfo(total.dtype).tiny)

    @torch.no_grad()
    def remember(self, classes: tuple[int, ...], train: Split) -> None:
        """Keep of every seen class the samples that were classified most confidently when its task ended."""
        new = torch.tensor(classes, device=self.met_in.device)
        self.met_in[new] = self.met_in[new].clamp(max=self.finished)
        share = shares(self.met_in.cpu(), self.memory.capacity)
        features = predict_all(self.net, train.inputs, self.plain_view, self.net.features)
        order = log_odds(self.net.injection(features), train.labels).argsort(descending=True, stable=True)
        stored = self.memory.rows.labels.cpu() if len(self.memory) else torch.empty(0, dtype=torch.int64)
        labels = torch.cat([stored, train.labels[order].cpu()])  # new samples: most confident first
        kept = place_in_class(labels) < share[labels]
        if len(stored):
            self.memory.keep(torch.nonzero(kept[: len(stored)]).flatten())
        rows = order[kept[len(stored) :].to(order.device)]
        if len(rows):
            tasks = torch.full_like(rows, self.finished)
            logits = self.net.head(features[rows])
            sample = TaskLogitSamples(train.inputs[rows], train.labels[rows], tasks, logits)
            self.memory.append(sample, take_ids(train.ids, rows))

    def get_extra_state(self) -> int:
        return self.finished

    def set_extra_state(self, state: int) -> None:
        self.finished = state


def with_attention(net: nn.Module) -> LVTNet:
    """The net itself, if it has attention parameters and an injection head; otherwise an error."""
    accessor = getattr(net, "attention_parameters", None)
    if callable(accessor) and isinstance(getattr(net, "injection", None), nn.Linear):
        return cast(LVTNet, net)
    raise ConfigError(
        f"lvt needs a net with external keys and an injection head, got {type(net).__name__}; "
        "use net.name=lvt"
    )


def log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    """(N,) log odds of the true label; they differ even for probabilities that round to 1."""
    own = labels[:, None]
    return logits.gather(1, own)[:, 0] - logits.scatter(1, own, -torch.inf).logsumexp(1)


def shares(met_in: Tensor, capacity: int) -> Tensor:
    """(C,) samples to keep per class: equally many of every seen class, one more of the newest."""
    met = met_in.where(met_in != NEVER, -1)
    each, left = divmod(capacity, int((met >= 0).sum()))
    share = (met >= 0) * each
    share[met.argsort(descending=True, stable=True)[:left]] += 1
    return share


def place_in_class(labels: Tensor) -> Tensor:
    """(N,) how many samples of the same class come before each sample."""
    order, counts = labels.argsort(stable=True), labels.bincount()
    places = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[order]]
    return torch.empty_like(places).index_copy_(0, order, places)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])
