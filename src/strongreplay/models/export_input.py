"""The part of an ONNX file in front of the net: from RGB images of any size to pixels of the net's side.

It does what `strongreplay.data.images.decode` does with Pillow: grey values, central square, bilinear
resizing with antialiasing, rounding after each direction. ONNX has `Resize` with antialiasing, but that of
onnxruntime 1.31 is up to 15 of 255 levels away from Pillow's; two products with matrices of weights are at
most one level away.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

IMAGES, PIXELS = "images", "pixels"
PREFIX = "prepare/"  # of names in this part
GREY = """
    luma = Constant <value = float[1, 3, 1, 1] {19595, 38470, 7471}> ()
    channel_axis = Constant <value = int64[1] {1}> ()
    grey_half = Constant <value = float {32768}> ()
    grey_whole = Constant <value = float {65536}> ()
    weighted = Mul (planes, luma)
    lightness = ReduceSum <keepdims = 1> (weighted, channel_axis)
    half_up = Add (lightness, grey_half)
    shifted = Div (half_up, grey_whole)
    colours = Floor (shifted)
"""  # Pillow's 16-bit arithmetic, exact in float32 because every sum is below 2 ** 24
# Row i of the weights is a triangle around the centre of output pixel i, as wide as two output pixels, at
# least two input pixels; the sum of a row is 1. Pixels beside the square count too, as with Pillow's `box`.
AXIS = """
    {axis}_size = Gather (shape, {axis}_place)
    {axis}_wide = Cast <to = 11> ({axis}_size)
    {axis}_rest = Sub ({axis}_wide, edge)
    {axis}_start = Mul ({axis}_rest, half)
    {axis}_before = Sub ({axis}_start, reach)
    {axis}_before_floor = Floor ({axis}_before)
    {axis}_first = Max ({axis}_before_floor, zero)
    {axis}_end = Add ({axis}_start, edge)
    {axis}_after = Add ({axis}_end, reach)
    {axis}_after_ceil = Ceil ({axis}_after)
    {axis}_last = Min ({axis}_after_ceil, {axis}_wide)
    {axis}_from = Cast <to = 7> ({axis}_first)
    {axis}_to = Cast <to = 7> ({axis}_last)
    {axis}_centres = Add ({axis}_start, steps)
    {axis}_range = Range ({axis}_first, {axis}_last, one)
    {axis}_middles = Add ({axis}_range, half)
    {axis}_apart = Sub ({axis}_middles, {axis}_centres)
    {axis}_distance = Abs ({axis}_apart)
    {axis}_part = Div ({axis}_distance, reach)
    {axis}_height = Sub (one, {axis}_part)
    {axis}_triangle = Max ({axis}_height, zero)
    {axis}_sum = ReduceSum <keepdims = 1> ({axis}_triangle, last_axis)
    {axis}_exact = Div ({axis}_triangle, {axis}_sum)
    {axis}_weights = Cast <to = 1> ({axis}_exact)
"""
GRAPH = """
<ir_version: {ir_version}, opset_import: ["" : {opset}]>
prepare (uint8[batch, height, width, 3] {images}) => (uint8[batch, {channels}, {side}, {side}] {pixels})
<
    int64 y_place = {{1}}, int64 x_place = {{2}}, int64[1] last_axis = {{-1}},
    int64[1] unit = {{1}}, int64[2] crop_axes = {{1, 2}}, double zero = {{0}}, double one = {{1}},
    double half = {{0.5}}, double side = {{{side}}}, double[{side}, 1] middles = {{{middles}}},
    float rounding = {{0.5}}
>
{{
    shape = Shape ({images})
    tall = Gather (shape, y_place)
    broad = Gather (shape, x_place)
    shorter = Min (tall, broad)
    edge = Cast <to = 11> (shorter)
    scale = Div (edge, side)
    reach = Max (scale, one)
    steps = Mul (middles, scale)
    {rows}
    {columns}
    y_begin = Reshape (y_from, unit)
    x_begin = Reshape (x_from, unit)
    y_stop = Reshape (y_to, unit)
    x_stop = Reshape (x_to, unit)
    begins = Concat <axis = 0> (y_begin, x_begin)
    stops = Concat <axis = 0> (y_stop, x_stop)
    cropped = Slice ({images}, begins, stops, crop_axes)
    turned = Transpose <perm = [0, 3, 1, 2]> (cropped)
    planes = Cast <to = 1> (turned)
    {colours}
    x_transposed = Transpose <perm = [1, 0]> (x_weights)
    narrow = MatMul (colours, x_transposed)
    narrow_up = Add (narrow, rounding)
    narrow_whole = Floor (narrow_up)
    small = MatMul (y_weights, narrow_whole)
    small_up = Add (small, rounding)
    small_whole = Floor (small_up)
    {pixels} = Cast <to = 2> (small_whole)
}}
"""


def with_preparation(model: "ModelProto", channels: int, side: int) -> "ModelProto":
    """The model with RGB images of any size in front of its input, which is named `pixels`."""
    from onnx import compose

    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    front = preparation(channels, side, model.ir_version, opset)
    front = compose.add_prefix(front, PREFIX, rename_inputs=False, rename_outputs=False)
    merged: ModelProto = compose.merge_models(front, model, [(PIXELS, PIXELS)])
    del merged.opset_import[:]  # both parts name the same one
    merged.opset_import.extend(model.opset_import)
    return merged


def preparation(channels: int, side: int, ir_version: int = 9, opset: int = 18) -> "ModelProto":
    """A graph from (N, H, W, 3) uint8 to (N, channels, side, side) uint8."""
    from onnx import parser

    text = GRAPH.format(
        ir_version=ir_version,
        opset=opset,
        images=IMAGES,
        pixels=PIXELS,
        channels=channels,
        side=side,
        middles=", ".join(f"{row + 0.5}" for row in range(side)),
        rows=AXIS.format(axis="y"),
        columns=AXIS.format(axis="x"),
        colours=GREY if channels == 1 else "colours = Identity (planes)",
    )
    return parser.parse_model(text)
