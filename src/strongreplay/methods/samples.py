"""Rows of memories: named tuples of tensors, one row a sample. Field names are keys of a saved state."""

from typing import NamedTuple

from torch import Tensor


class LabelledSamples(NamedTuple):
    images: Tensor  # as stored in the stream
    labels: Tensor


class TaskSamples(NamedTuple):
    images: Tensor
    labels: Tensor
    tasks: Tensor  # (M,) number of the sample's task


class LogitSamples(NamedTuple):
    images: Tensor
    labels: Tensor
    logits: Tensor  # (M, C) the net's output when the sample was stored


class TaskLogitSamples(NamedTuple):
    images: Tensor
    labels: Tensor
    tasks: Tensor  # (M,)
    logits: Tensor  # (M, C)


class ScoredSamples(NamedTuple):
    images: Tensor
    labels: Tensor
    scores: Tensor  # (M,)
