"""An ONNX file against the net it was made of: onnxruntime must give PyTorch's logits."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strongreplay.errors import ConfigError, DataError, RunError
from strongreplay.models.export_graph import OUTPUTS, Deployed

LIMIT = 1e-4  # largest difference to PyTorch; scaled by the largest logit if that is above 1
BATCH_SIZES = 1, 7, 100


def random_samples(shape: tuple[int, ...], mean: Sequence[float], std: Sequence[float]) -> Tensor:
    generator = torch.Generator().manual_seed(0)  # the caller's generators are not touched
    size = (max(BATCH_SIZES), *shape)
    if len(shape) == 3:
        return torch.randint(256, size, dtype=torch.uint8, generator=generator)
    return torch.randn(size, generator=generator) * torch.tensor(std) + torch.tensor(mean)


def checked_samples(path: Path, samples: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The samples on the host, after checking shape and dtype."""
    expected = f"images must be (N, {', '.join(map(str, shape))}) {'uint8' if len(shape) == 3 else 'float'}"
    if samples.shape[1:] != shape or (len(shape) == 3) != (samples.dtype == torch.uint8):
        raise DataError(
            f"{path}: {expected}, got {tuple(samples.shape)} {samples.dtype}; give them as stored"
        )
    return (samples if len(shape) == 3 else samples.float()).detach().cpu().contiguous()


def check_logits(path: Path, reference: Deployed, samples: Tensor, num_labels: int) -> None:
    with torch.inference_mode():
        logits = reference(samples)[0]
    if (got := tuple(logits.shape)) != (expected := (len(samples), num_labels)):
        raise ConfigError(
            f"{path}: {num_labels} labels need logits {expected}, the net gave {got}; name every column"
        )
    if not logits.isfinite().all():
        raise RunError(
            f"{path}: logits must be finite, the net gave {logits[0].tolist()[:3]}; train it again"
        )


def compare(path: Path, file: Path, reference: Deployed, samples: Tensor) -> float:
    """The largest difference of a logit over all batches; above the limit it is an error."""
    session = open_session(path, file)
    worst = 0.0
    for batch in batches(samples):
        with torch.inference_mode():
            expected = reference(batch)[0]
        logits = run_session(path, session, batch)
        same = logits.shape == expected.shape
        difference = (logits - expected).abs().max().item() if same else math.inf
        limit = LIMIT * max(1.0, expected.abs().max().item())
        if not difference <= limit:  # `not <=` is also true for NaN
            raise RunError(
                f"{path}: onnxruntime and PyTorch differ by {difference:.3g} in a batch of {len(batch)}, "
                f"at most {limit:.3g} is allowed; nothing was written, use the net in PyTorch"
            )
        worst = max(worst, difference)
    return worst


def batches(samples: Tensor) -> Iterator[Tensor]:
    """Batches of all sizes, with repeated samples if there are few, and then the remaining samples."""
    for size in BATCH_SIZES:
        yield cycle(samples, size)
    for start in range(BATCH_SIZES[-1], len(samples), BATCH_SIZES[-1]):
        yield samples[start : start + BATCH_SIZES[-1]]


def cycle(samples: Tensor, size: int) -> Tensor:
    """A batch of `size` samples; after the last sample it starts again with the first."""
    return samples[torch.arange(size) % len(samples)]


def open_session(path: Path, file: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # log errors only; they are raised as exceptions too
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has no common base class of exceptions
        raise refused(path, error) from error


def run_session(path: Path, session: Any, batch: Tensor) -> Tensor:
    name = session.get_inputs()[0].name
    if batch.dim() == 4:  # the file takes (N, H, W, 3), grey images as colours
        batch = batch.expand(-1, 3, -1, -1).movedim(1, -1).contiguous()
    try:
        return torch.from_numpy(session.run(OUTPUTS[:1], {name: batch.numpy()})[0])
    except Exception as error:  # as above
        raise refused(path, error) from error


def refused(path: Path, error: Exception) -> RunError:
    reason = str(error).strip().partition("\n")[0]
    return RunError(f"{path}: onnxruntime does not run this net ({reason}); use it in PyTorch")
