"""Unlabelled images from elsewhere, which some methods need beside the stream."""

import torch
from torch import Tensor

from strongreplay.errors import ConfigError
from strongreplay.methods.base import Problem
from strongreplay.protocol import Split


def needed_images(method: str, problem: Problem) -> Tensor:
    """The auxiliary images of the problem, or an error that says how to give some."""
    if problem.auxiliary is None or not len(problem.auxiliary):
        raise ConfigError(
            f"{method} needs unlabelled images beside the stream: give a dataset or your own images with "
            "--set data.auxiliary=cifar100 or --set data.auxiliary=folder:PHOTOS"
        )
    return problem.auxiliary


def unlabelled(images: Tensor) -> Split:
    """The images with the label -1, which no loss accepts."""
    return Split(images, torch.full((len(images),), -1))
