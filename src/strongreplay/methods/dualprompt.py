"""DualPrompt.

Paper: Wang et al., "DualPrompt: Complementary Prompting for Rehearsal-free Continual Learning", 2022,
https://arxiv.org/abs/2204.04799
The net is a ViT with pretrained weights, which stay as they are. Prompts are keys and values that are put
before those of a block. The first blocks have a general prompt, shared by all tasks; later ones have an
expert prompt for each task, with a key. In training the task is known. In a test the feature of an image
without prompts is its query, and the expert whose key is most similar answers. Nothing is kept of the data.
An expert starts as a copy of the one before; its key is drawn.
Differences from the reference (the authors' code): only keys of tasks met so far are searched, and each image
chooses its own expert (`vote=true`: the batch votes, so that an answer depends on the other images). A widely
used port mixes keys, values and images of a batch; here each image has its own prompt, keys as keys and
values as values.
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Optimizer

from strongreplay.errors import ConfigError
from strongreplay.methods.base import Method, MethodConfig, Problem, SavedGenerator, descend
from strongreplay.methods.expansion import add_missing, count_children
from strongreplay.methods.prompts import PromptedNet, TaskColumns, cosines, draw, nearest, vote
from strongreplay.protocol import Batch, Task, Terms


class DualPromptConfig(MethodConfig):
    general_length: int = Field(5, ge=0, description="keys and values of the general prompt in a block")
    expert_length: int = Field(5, ge=1, description="keys and values of an expert prompt in a block")
    general_blocks: tuple[int, ...] = Field((0, 1), description="blocks with the general prompt, from 0")
    expert_blocks: tuple[int, ...] = Field(
        (2, 3, 4), min_length=1, description="blocks with an expert prompt, from 0"
    )
    pull: float = Field(1.0, ge=0, description="weight of the similarity of queries and the task's key")
    vote: bool = Field(False, description="in a test, the expert that most images of a batch choose")


class DualPromptNet(PromptedNet):
    """Prompts are (blocks, 2, heads, length, head size): keys and values of each block."""

    def __init__(self, net: nn.Module, config: DualPromptConfig, generator: torch.Generator) -> None:
        super().__init__(net, "dualprompt")
        self.config, form = config, self.body.form
        check_blocks(config, form.depth)
        heads, size = form.heads, form.width // form.heads
        general = draw(generator, len(config.general_blocks), 2, heads, config.general_length, size)
        expert = draw(generator, len(config.expert_blocks), 2, heads, config.expert_length, size)
        self.general = nn.Parameter(general)
        self.experts = nn.ParameterList([nn.Parameter(expert)])  # one for each task
        self.keys = nn.ParameterList([nn.Parameter(draw(generator, form.width))])

    def add_task(self, key: Tensor) -> None:
        """A copy of the last expert and a new key; earlier ones are frozen."""
        last = self.experts[-1]
        self.experts.append(nn.Parameter(last.detach().clone()))
        self.keys.append(nn.Parameter(key.to(last)))
        self.freeze_earlier()

    def freeze_earlier(self) -> None:
        for each in (*self.experts[:-1], *self.keys[:-1]):
            each.requires_grad_(False)

    def similarities(self, inputs: Tensor) -> Tensor:
        """(B, T) of queries and keys."""
        return cosines(self.queries(inputs), torch.stack(list(self.keys)))

    def choose(self, inputs: Tensor) -> Tensor:
        """(B,) the expert of each image."""
        picks = nearest(self.similarities(inputs), 1)
        return (vote(picks, len(self.keys)) if self.config.vote else picks)[:, 0]

    def chosen(self, picks: Tensor) -> Tensor:
        """(B, blocks, 2, heads, length, head size) the experts of these numbers."""
        return torch.stack(list(self.experts))[picks]

    def prompted(self, inputs: Tensor, experts: Tensor) -> Tensor:
        """(B, D) features with an expert for each image."""
        general = self.general.expand(len(inputs), *self.general.shape)
        none = general.new_empty(len(inputs), 2, self.body.form.heads, 0, general.shape[-1])
        blocks = [none] * (1 + max(self.config.general_blocks + self.config.expert_blocks))
        for prompts, places in ((general, self.config.general_blocks), (experts, self.config.expert_blocks)):
            for number, place in enumerate(places):
                blocks[place] = prompts[:, number]
        no_tokens = general.new_empty(len(inputs), 0, self.body.form.width)
        features: Tensor = self.body(inputs, no_tokens, *blocks)
        return features

    def features(self, inputs: Tensor) -> Tensor:
        return self.prompted(inputs, self.chosen(self.choose(inputs)))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The lists are loaded after this call, so they must have as many entries as the state.
        count = count_children(state_dict, prefix + "keys.")
        while len(self.keys) < count:
            self.add_task(self.keys[-1].detach().clone())
        self.experts, self.keys = self.experts[:count], self.keys[:count]
        for each in (self.experts[-1], self.keys[-1]):
            each.requires_grad_()
        self.freeze_earlier()
        super()._load_from_state_dict(state_dict, prefix, *args)


class DualPrompt(Method):
    net: DualPromptNet

    def __init__(self, net: nn.Module, problem: Problem, config: DualPromptConfig | None = None) -> None:
        super().__init__()
        self.config = config or DualPromptConfig()
        self.draws = SavedGenerator(problem.generator("prompts"))
        self.net = DualPromptNet(net, self.config, self.draws.generator)
        self.columns = TaskColumns(self.net.head.out_features)
        self.begun = 0  # tasks

    def begin_task(self, task: Task) -> Task:
        self.columns.begin(task, "dualprompt")
        if self.begun:
            self.net.add_task(draw(self.draws.generator, self.net.body.form.width))
        self.begun += 1
        return task

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        add_missing(optimizer, self.net)
        net, expert = self.net, self.net.experts[-1]
        logits = net.head(net.prompted(batch.inputs, expert.expand(len(batch), *expert.shape)))
        similarity = cosines(net.queries(batch.inputs), net.keys[-1][None]).mean()
        terms = {"current": self.columns.loss(logits, batch.labels), "pull": -self.config.pull * similarity}
        return descend(optimizer, terms)

    def grow(self, num_classes: int, generator: torch.Generator) -> None:
        super().grow(num_classes, generator)
        self.columns.grow(num_classes)

    def get_extra_state(self) -> int:
        return self.begun

    def set_extra_state(self, state: int) -> None:
        self.begun = state


def check_blocks(config: DualPromptConfig, depth: int) -> None:
    places = config.general_blocks + config.expert_blocks
    if len(set(places)) < len(places):
        raise ConfigError(f"dualprompt: a block has one prompt, got {places} in general and expert blocks")
    if not all(0 <= place < depth for place in places):
        raise ConfigError(
            f"dualprompt: prompts are in blocks {places}, and the net has blocks 0 to {depth - 1}; set "
            "net.depth, method.general_blocks or method.expert_blocks"
        )
