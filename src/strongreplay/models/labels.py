"""Which column of the net's outputs belongs to a label. Columns are never reordered."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from strongreplay.data.labels import normalise
from strongreplay.data.user_data import Chunk, Label
from strongreplay.errors import ConfigError, DataError

CASES = ("merge", "keep")


def with_new_labels(known: Sequence[Label], arriving: Sequence[Label]) -> list[Label]:
    """The known labels, then the new ones, sorted, so that the order of the data does not matter."""
    check_kinds([*known, *arriving])
    new = set(arriving) - set(known)
    return [*known, *sorted(new, key=lambda label: (isinstance(label, str), label))]


def check_all_known(fixed: Sequence[Label], arriving: Sequence[Label]) -> None:
    """Refuse a label that a model with a fixed set of classes does not have."""
    allowed = set(fixed)
    foreign = [label for label in arriving if label not in allowed]
    if foreign:
        raise DataError(
            f"the model is fixed to {len(fixed)} classes and {foreign[0]!r} is none of them; "
            "leave these samples out, or make a new model"
        )


def check_kinds(labels: Sequence[Label]) -> None:
    """Refuse 1 together with "1": they look like one class but would be two."""
    texts = {label for label in labels if isinstance(label, str)}
    twice = [label for label in labels if not isinstance(label, str) and str(label) in texts]
    if twice:
        raise DataError(
            f"labels: both {twice[0]} and '{twice[0]}' occur; use numbers or texts for all of them"
        )


def settle_case(chunk: Chunk, known: Sequence[Label], case: str | None) -> Chunk:
    """The chunk with settled labels: `Cat` and `cat` are merged, or kept apart, or the user is asked.

    Merged labels get the spelling the model knows, else the one that comes first. A known label in another
    form of Unicode (models before labels were normalised) stays the known one.
    """
    if case not in (None, *CASES):
        raise ConfigError(f"case must be {' or '.join(CASES)}, got {case!r}; give one of them or none")
    spelt = {normalise(label): label for label in known if isinstance(label, str)}
    folded = {label.casefold(): label for label in reversed(spelt.values())}
    renamed: dict[Label, Label] = {}
    for label in sorted({label for label in chunk.labels if isinstance(label, str)}):
        if label in spelt:
            renamed[label] = spelt[label]
            continue
        other = folded.setdefault(label.casefold(), label)
        if other != label and case is None:
            raise DataError(
                f"labels: '{other}' and '{label}' differ in capitals only; make them one class with "
                "--merge-case, or two with --keep-case (Learner: case='merge' or 'keep')"
            )
        renamed[label] = other if case == "merge" else label
    labels = tuple(renamed.get(label, label) for label in chunk.labels)
    return chunk if labels == chunk.labels else replace(chunk, labels=labels)


def columns_of(labels: Sequence[Label], known: Sequence[Label]) -> Tensor:
    """(N,) int64: the column of each label."""
    places = {label: column for column, label in enumerate(known)}
    return torch.tensor([places[label] for label in labels])
