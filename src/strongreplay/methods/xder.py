"""eXtended Dark Experience Replay (X-DER).

Paper: Boschini et al., "Class-Incremental Continual Learning into the eXtended DER-verse", 2022,
https://arxiv.org/abs/2201.00766
Reference: mammoth. Present, past and future columns have losses of their own. Stored logits are kept up to
date: columns that were in the future when a sample was stored are replaced later ("future past"). Contrast
between strong views prepares future columns. The memory is balanced by class and filled when a task ends.
Running statistics change in one forward pass of a step: with replayed and some stream images.
Differences from the reference: a negative logit of the right class counts as 0 in the correction of logits
(`correction="legacy"`); columns are found by the classes of each task, in any order; unequal tasks are
allowed: future columns form heads of C / T columns each, a rest is left out. All three are our reading.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from strongreplay.data.augment.contrast import contrast_view
from strongreplay.errors import ConfigError
from strongreplay.memory import Memory, take_ids
from strongreplay.methods import xder_parts as parts
from strongreplay.methods.base import (
    Method,
    Problem,
    descend,
    replay_count,
    squared_distance,
)
from strongreplay.methods.norm_statistics import held_statistics
from strongreplay.methods.samples import LogitSamples
from strongreplay.methods.xder_parts import FILL_SIZE, Replayed, XDERConfig
from strongreplay.protocol import Batch, Task, Terms
from strongreplay.sampling import draw_distinct, first_of_each


class XDER(Method):
    resized_buffers = ("heads",)
    past: Tensor  # (C,) classes of finished tasks
    present: Tensor  # (C,) classes of this task; all before the first one
    task_of: Tensor  # (C,) number of the class's task; -1: in the future
    heads: Tensor  # (H, D) columns of the future heads

    def __init__(self, net: nn.Module, problem: Problem, config: XDERConfig | None = None) -> None:
        super().__init__()
        self.net, self.config, num_classes = net, config or XDERConfig(), problem.num_classes
        self.view, self.plain_view = problem.train_view, problem.test_view
        self.generator, size = problem.generator("x-der"), self.config.memory_size
        self.memory = Memory(LogitSamples, size, problem.generator("memory"))  # logits kept up to date
        self.num_columns = max(num_classes // problem.num_tasks, 1)  # of a future head
        self.num_finished, self.visits = 0, torch.zeros(size, dtype=torch.int64)  # of each slot, in this task
        self.register_buffer("past", torch.zeros(num_classes, dtype=torch.bool))
        self.register_buffer("present", torch.ones(num_classes, dtype=torch.bool))
        self.register_buffer("task_of", torch.full((num_classes,), -1))
        self.register_buffer("heads", torch.empty(0, self.num_columns, dtype=torch.int64))

    def begin_task(self, task: Task) -> Task:
        shape, classes = tuple(task.train.inputs.shape), list(task.classes)
        if self.config.contrast and len(shape) != 4:
            raise ConfigError(f"xder contrasts images (N, C, H, W), got {shape}; set method.contrast=0")
        if (self.task_of[classes] < 0).any():
            self.task_of[classes] = self.task_of.amax() + 1
        self.present.zero_()[classes] = True
        future = torch.nonzero(self.task_of < 0).flatten()
        self.heads = future[: len(future) // self.num_columns * self.num_columns].view(-1, self.num_columns)
        return task

    def observe(self, batch: Batch, optimizer: Optimizer) -> Terms:
        config, aligned = self.config, bool(len(self.memory) and self.config.alpha)
        with held_statistics(self.net, config.align_bn and aligned):
            logits = self.net(batch.inputs)
        own = logits if config.compete == "all" else logits.masked_fill(~self.present, -torch.inf)
        terms, outputs, labels = {"current": cross_entropy(own, batch.labels)}, logits, batch.labels
        if len(self.memory) and (config.alpha or config.beta):
            replayed = self.replay(batch, terms)
            outputs, labels = torch.cat([logits, replayed.outputs]), torch.cat([labels, replayed.labels])
            if config.update:
                self.refresh(replayed)
        if len(self.heads) and config.contrast:
            with held_statistics(self.net, config.align_bn):
                terms |= self.contrast(batch)
        if len(self.heads) and config.eta:
            blocks = self.task_of[labels][:, None] == self.task_of
            over = parts.excess(
                parts.largest(outputs, self.task_of < 0), parts.largest(outputs, blocks), config.margin
            )
            terms["future"] = config.eta * over
        if self.num_finished and config.past_eta:
            shares = logits.masked_fill(~(self.past | self.present), -torch.inf).softmax(1)
            over = parts.excess(
                parts.largest(shares, self.past).detach(), parts.largest(shares, self.present), config.margin
            )
            terms["past"] = config.past_eta * over
        return descend(optimizer, terms)

    def replay(self, batch: Batch, terms: Terms) -> Replayed:
        """Add the terms of two independent draws, one for logits and one for labels."""
        config, slots, rows, outputs = self.config, list[Tensor](), list[LogitSamples](), list[Tensor]()
        for weight, name in ((config.alpha, "backward"), (config.beta, "replay")):
            if not weight:
                continue
            count = min(replay_count(config, batch), len(self.memory))
            slots.append(draw_distinct(len(self.memory), count, self.memory.generator))
            rows.append(self.memory.take(slots[-1]))
            inputs = self.view(rows[-1].images)
            if name == "backward" and config.align_bn:  # running statistics of all tasks in equal parts
                inputs = torch.cat([inputs, batch.inputs[: count // max(self.num_finished, 1)]])
            with held_statistics(self.net, config.align_bn and name == "replay"):
                outputs.append(self.net(inputs)[:count])
            if name == "backward":
                loss = squared_distance(outputs[-1], rows[-1].logits, ragged=False)
            else:
                loss = cross_entropy(outputs[-1].masked_fill(~self.past, -torch.inf), rows[-1].labels)
            terms[name] = weight * loss
        joined = torch.cat(slots)
        first = torch.from_numpy(np.sort(np.unique(joined.numpy(), return_index=True)[1]))
        here = first.to(self.past.device)
        labels, stored = torch.cat([row.labels for row in rows]), torch.cat([row.logits for row in rows])
        return Replayed(joined[first], labels[here], stored[here], torch.cat(outputs)[here])

    def refresh(self, replayed: Replayed) -> None:
        """Replace the logits of present and future columns, at a slot's n-th visit with probability 1/n."""
        self.visits[replayed.slots] += 1
        draws = torch.rand(len(replayed.slots), generator=self.generator)
        chosen = torch.nonzero(draws * self.visits[replayed.slots] < 1).flatten()
        here = chosen.to(self.past.device)
        stored, outputs, labels = (
            part[here] for part in (replayed.stored, replayed.outputs.detach(), replayed.labels)
        )
        self.store(replayed.slots[chosen], self.correct(stored, outputs, labels, ~self.past))

    def correct(self, stored: Tensor, fresh: Tensor, labels: Tensor, columns: Tensor) -> Tensor:
        legacy = self.config.correction == "legacy"
        return parts.correct_logits(stored, fresh, labels, columns, self.config.gamma, legacy)

    def store(self, slots: Tensor, logits: Tensor) -> None:
        self.memory.rows.logits.index_copy_(0, slots.to(logits.device), logits)

    def contrast(self, batch: Batch) -> Terms:
        """Terms of the future heads, from strong views of replayed and stream images."""
        config, images, labels, count = self.config, batch.images, batch.labels, 0
        if len(self.memory):
            replayed = self.memory.sample(config.contrast_size)
            images, labels = torch.cat([replayed.images, images]), torch.cat([replayed.labels, labels])
            count = len(replayed.images)
        shown = contrast_view(
            images.repeat(config.num_views, 1, 1, 1),
            self.generator,
            config.crop_scale,
            config.flip,
            config.jitter,
        )
        heads = self.net(self.plain_view(shown))[:, self.heads].transpose(0, 1)  # (H, V * N, D)
        near = parts.contrast(heads, labels.repeat(config.num_views), config.temperature)
        terms = {"contrast": config.contrast * near}
        if count and config.distance:
            views = heads.unflatten(1, (config.num_views, -1))[:, :, :count]  # (H, V, n, D)
            stored = replayed.logits[:, self.heads].transpose(0, 1)[:, None]
            terms["similarity"] = config.distance * parts.similarity_distance(views, stored)
        return terms

    @torch.no_grad()
    def end_task(self, task: Task) -> None:
        """Choose the memory anew, equally many of each class, and update the logits of older samples."""
        self.past[list(task.classes)] = True
        memory, quota = self.memory, self.memory.capacity // int(self.past.sum())
        if len(memory):
            stored = memory.rows.labels.cpu()
            kept = first_of_each(stored, quota)
            memory.keep(kept[~torch.isin(stored[kept], torch.tensor(task.classes))])
        num_old, earlier = len(memory), self.past & ~self.present
        with held_statistics(self.net):
            for chunk, chosen in parts.fill_batches(task, memory.capacity - num_old, memory.generator):
                chunk = chunk.to(self.past.device)
                logits = self.net(self.view(chunk.inputs))
                if self.num_finished and self.config.update:
                    logits = self.correct(logits, logits, chunk.labels, earlier)
                here = chosen.to(logits.device)
                new = LogitSamples(chunk.inputs[here], chunk.labels[here], logits[here])
                memory.append(new, take_ids(chunk.ids, here))
            for slots in torch.arange(num_old).split(FILL_SIZE) if num_old and self.config.update else ():
                rows = memory.take(slots)
                fresh = self.net(self.view(rows.images))
                self.store(slots, self.correct(rows.logits, fresh, rows.labels, ~earlier))
        self.num_finished += 1
        self.visits.zero_()

    def get_extra_state(self) -> dict[str, Any]:
        state = {"generator": self.generator.get_state(), "visits": self.visits.clone()}
        return state | {"num_finished": self.num_finished}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"].cpu())
        self.visits, self.num_finished = state["visits"].cpu().clone(), state["num_finished"]
