"""Labels: text or integers, one for each sample, without characters that cannot be printed."""

from collections.abc import Sequence
from typing import Any
from unicodedata import category, normalize

from torch.utils.data import Subset

from strongreplay.errors import DataError

Label = str | int


def read_label(value: Any, where: str) -> Label:
    if getattr(value, "shape", None) == ():
        value = value.item()
    if isinstance(value, str):
        return normalise(check_name(str(value), where))
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise DataError(
        f"{where}: a label must be text or a whole number, got {value!r:.80}; give every sample such a label"
    )


def name_labels(labels: tuple[Label, ...], data: Any) -> tuple[Label, ...]:
    """Replace numbers by the class names of a dataset, if it has them."""
    while isinstance(data, Subset):  # a Subset has the labels of the whole dataset
        data = data.dataset
    classes = getattr(data, "classes", None)
    if not isinstance(classes, list | tuple) or not all(isinstance(name, str) for name in classes):
        return labels
    return tuple(name_numbers(labels, classes, "data"))


def name_numbers(labels: Sequence[Label], classes: Sequence[str] | None, where: str) -> list[Label]:
    """Replace numbers by the names of classes; without names, or with labels that are text, leave them."""
    if classes is None or not all(isinstance(label, int) for label in labels):
        return list(labels)
    numbers = [int(label) for label in labels]
    if odd := [number for number in numbers if not 0 <= number < len(classes)]:
        raise DataError(
            f"{where}: labels must be 0 to {len(classes) - 1}, as many as {where}.classes has names, got "
            f"{odd[0]}; fix the labels or take the names away"
        )
    return [normalise(check_name(classes[number], f"{where}.classes")) for number in numbers]


def normalise(name: str) -> str:
    """One form of letters with accents (NFC): file systems and editors write others that look the same."""
    return normalize("NFC", name)


def check_name(name: str, where: object) -> str:
    """Return a name, or raise a DataError if it has control characters."""
    if not name.strip() or any(category(sign) in ("Cc", "Cs") for sign in name):
        raise DataError(f"{where}: names must be text without control characters, got {name!a}; rename it")
    return name
