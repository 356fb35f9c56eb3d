"""The model card of a version: what it is, what it learnt from, how it was judged, and its limits."""

import json

from strongreplay.errors import printable
from strongreplay.models.model import Model
from strongreplay.models.store import Version

CARD = """---
library_name: strongreplay
pipeline_tag: {task}
tags: [continual-learning]
---

# {name}

A classifier of {num_classes} classes, kept up to date with `ser learn`: version {version}, written {written}.

## Use

```python
import torch
from pathlib import Path
from strongreplay.data.images import decode_bytes
from strongreplay.models.hand_over import read_hub_folder

model = read_hub_folder(Path("."), torch.device("cpu"))  # this folder
pixels = torch.from_numpy(decode_bytes(Path("photo.jpg").read_bytes(), model.shape))
print(model.answers(pixels[None]))
```

or `ser predict` on the folder it was exported from. It takes samples of shape {shape}; images are cropped to
their central square, resized, scaled to 0..1 and normalised (`config.json` has mean and deviation).

## Data

The last update learnt from {learnt} samples and held {held_out} out for judgement. Samples by class:

{samples}

## How it was judged

Accuracy in per cent on held-out samples of each class, before and after the last update; an update is refused
if a class falls by more than {max_drop} points.

{changes}

## Limits

- It knows the classes above and nothing else: a photo of anything else gets one of these labels too.
- Accuracy holds for photos like those it learnt from; `ser drift` tells when new ones differ.
- Classes judged by few samples have wide intervals; see the counts.
- Net: {net}. Method: {method}. Updates so far: {updates}.

_To be filled in by whoever publishes it: intended use, uses to avoid, licence, contact._
"""


def write_card(model: Model, version: Version) -> str:
    about = version.about
    chunk = about.get("chunk", {})
    changes = [
        f"| {cell(one['label'])} | {number(one['before'])} | {number(one['after'])} | {one['count']} |"
        for one in about.get("changes", [])
    ] + [
        f"| {cell(label)} | new | {100 * right / total if total else 0:.1f} | {total} |"
        for label, right, total in about.get("fresh", [])
    ]
    samples = [f"| {cell(label)} | {count} |" for label, count in chunk.get("samples", [])]
    limit = about.get("max_drop")
    return CARD.format(
        name="A kept classifier",
        task="image-classification" if len(model.shape) == 3 else "tabular-classification",
        num_classes=len(model.labels),
        version=version.name,
        written=version.written,
        shape=" x ".join(map(str, model.shape)),
        learnt=chunk.get("learnt", "?"),
        held_out=chunk.get("held_out", "?"),
        samples="\n".join(["| class | samples |", "| --- | --- |", *samples]),
        changes="\n".join(["| class | before | after | judged by |", "| --- | --- | --- | --- |", *changes]),
        max_drop="any number of" if limit is None else f"{limit:g}",
        net=json.dumps(model.settings.net.name),
        method=model.settings.learner.method,
        updates=model.num_updates,
    )


def cell(label: object) -> str:
    """A label that cannot break a table or become markup."""
    text = printable(str(label))
    return "".join(f"\\{sign}" if sign in "\\`*_{}[]<>()#|!" else sign for sign in text)


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
