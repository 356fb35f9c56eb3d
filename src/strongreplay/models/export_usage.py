"""What goes into an ONNX file and what comes out, for its metadata and for the text beside it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strongreplay.models.export_input import IMAGES

FEATURES = "features"
MOST_LABELS = 1000  # in the text; the metadata have all
IMAGE_EXAMPLE = """\
import json, sys
import numpy as np, onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession({name})
labels = json.loads(session.get_modelmeta().custom_metadata_map["labels"])
for path in sys.argv[1:]:
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    (probabilities,) = session.run(["probabilities"], {{"images": np.asarray(image)[None]}})
    best = probabilities[0].argmax()
    print(path, labels[best], f"{{probabilities[0, best]:.4f}}", sep="\\t")
"""
FEATURE_EXAMPLE = """\
import json, sys
import numpy as np, onnxruntime

session = onnxruntime.InferenceSession({name})
labels = json.loads(session.get_modelmeta().custom_metadata_map["labels"])
for path in sys.argv[1:]:
    features = np.load(path).astype(np.float32)
    (probabilities,) = session.run(["probabilities"], {{"features": features}})
    for row, best in enumerate(probabilities.argmax(1)):
        print(f"{{path}}#{{row}}", labels[best], f"{{probabilities[row, best]:.4f}}", sep="\\t")
"""
TEXT = """\
# {file}

Written by strongreplay. It runs with onnxruntime; strongreplay and PyTorch are not needed.

- **Input** `{name}`: {what}.
- **Outputs** `logits` and `probabilities`: float32, (batch, {num_labels}), one column for each label, in the
  order below; the probabilities of a sample lie between 0 and 1, and their sum is 1.
- **Labels** are in the metadata too, under the key `labels`, as JSON: {labels}{more}

```python
{example}```

Run it with `python example.py PATH ...`.
"""
IMAGE_TEXT = """\
uint8, (batch, height, width, 3): RGB images of any size with values 0 to 255, upright,
  neither resized nor normalised, and not BGR. Images of one batch have one size. The graph {grey}takes the
  central square, resizes it to {side} x {side} pixels as Pillow's bilinear filter does (with antialiasing),
  scales and normalises. Images of {side} x {side} pixels keep their pixels. Put transparent images over black
  before"""


def text_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.md")


def describe_input(shape: Sequence[int]) -> dict[str, Any]:
    if len(shape) == 1:
        return {"name": FEATURES, "type": "float32", "axes": ["batch", "features"], "shape": [None, *shape]}
    return {
        "name": IMAGES,
        "type": "uint8",
        "axes": ["batch", "height", "width", "channels"],
        "shape": [None, None, None, 3],
        "channels": "RGB",
        "range": [0, 255],
        "inside": ["grey"] * (shape[0] == 1) + ["centre crop", "resize", "scale", "normalise"],
    }


def describe_outputs(num_labels: int) -> list[dict[str, Any]]:
    shared = {"type": "float32", "axes": ["batch", "labels"], "shape": [None, num_labels]}
    return [{"name": "logits", **shared}, {"name": "probabilities", **shared, "range": [0, 1]}]


def write_usage(file: str, shape: Sequence[int], labels: Sequence[str | int]) -> str:
    """The text beside a file of this name, in Markdown."""
    is_images = len(shape) == 3
    what = f"float32, (batch, {shape[0]}): features as they were learnt, not normalised"
    if is_images:
        grey = "makes them grey, " if shape[0] == 1 else ""
        what = IMAGE_TEXT.format(side=shape[1], grey=grey)
    shown = json.dumps(list(labels[:MOST_LABELS]), default=int)  # ASCII, so it can always be written
    return TEXT.format(
        file=ascii(file)[1:-1],
        name=IMAGES if is_images else FEATURES,
        what=what,
        num_labels=len(labels),
        labels=shown,
        more=f" and {len(labels) - MOST_LABELS} more" if len(labels) > MOST_LABELS else "",
        example=(IMAGE_EXAMPLE if is_images else FEATURE_EXAMPLE).format(name=ascii(file)),
    )
