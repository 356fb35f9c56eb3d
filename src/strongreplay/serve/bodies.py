"""Reads the images of a request: the bytes of one, a multipart form of several, or JSON with base64."""

import base64
import binascii
import json
from typing import NamedTuple

import torch
from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from torch import Tensor

from strongreplay.data.images import BadImage, TooManyPixels, decode_bytes
from strongreplay.serve.limits import ServiceLimits

PLAIN = ("", "application/octet-stream", "application/x-www-form-urlencoded")  # the last: curl --data-binary
EXAMPLE = {"images": ["iVBORw0KGgo..."], "top": 3}
BINARY = {"schema": {"type": "string", "format": "binary"}}
TOP = {
    "name": "top",
    "in": "query",
    "schema": {"type": "integer", "minimum": 1},
    "description": "How many classes to list for each image.",
}
REQUEST_BODY = {  # for the OpenAPI page
    "required": True,
    "content": {
        "image/jpeg": BINARY,
        "image/png": BINARY,
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {"images": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                "required": ["images"],
            }
        },
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {
                    "images": {"type": "array", "items": {"type": "string", "contentEncoding": "base64"}},
                    "top": {"type": "integer", "minimum": 1},
                },
                "required": ["images"],
            },
            "example": EXAMPLE,
        },
    },
}
FORMS = {"requestBody": REQUEST_BODY, "parameters": [TOP]}  # of a request for answers


class BadRequest(Exception):
    """A request that cannot be answered; `status` is its HTTP status."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class Upload(NamedTuple):
    name: str
    content: bytes


class Body(NamedTuple):
    uploads: list[Upload]
    top: int | None = None  # if the body says it


async def read_body(request: Request, limits: ServiceLimits) -> Body:
    """The images of a request as bytes, at least one."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        body = await read_form(request, limits)
    elif kind == "application/json":
        body = read_json(await request.body())
    elif kind.startswith("image/") or kind in PLAIN:
        body = Body([Upload("image", await request.body())])
    else:
        expected = "an image type, multipart/form-data or application/json"
        raise BadRequest(f"Content-Type: expected {expected}, got '{kind[:80]}'", 415)
    if not body.uploads or not all(upload.content for upload in body.uploads):
        raise BadRequest(
            "no image: send its bytes, a form with files, or JSON such as " + json.dumps(EXAMPLE)
        )
    if len(body.uploads) > limits.images_limit:
        raise BadRequest(f"{len(body.uploads)} images, at most {limits.images_limit} a request", 413)
    return body


async def read_form(request: Request, limits: ServiceLimits) -> Body:
    try:
        async with request.form(max_files=limits.images_limit + 1, max_fields=8) as form:
            files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
            uploads = [
                Upload(file.filename or f"#{row}", await file.read()) for row, file in enumerate(files)
            ]
            texts = [value for key, value in form.multi_items() if key == "top" and isinstance(value, str)]
    except MultiPartException as error:
        raise BadRequest(f"the form cannot be read: {error.message}") from None
    except Exception as error:
        if detail := getattr(error, "detail", None):  # Starlette wraps the fault of a form in an HTTP error
            raise BadRequest(f"the form cannot be read: {detail}") from None
        raise
    return Body(uploads, read_top(texts[0]) if texts else None)


def read_json(content: bytes) -> Body:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON ({error})") from None
    images = found.get("images") if isinstance(found, dict) else None
    if not isinstance(images, list) or not all(isinstance(text, str) for text in images):
        raise BadRequest(f"JSON needs 'images', a list of base64 texts, such as {json.dumps(EXAMPLE)}")
    uploads = []
    for row, text in enumerate(images):
        try:
            uploads.append(Upload(f"#{row}", base64.b64decode(text, validate=True)))
        except (binascii.Error, ValueError) as error:
            raise BadRequest(f"image #{row} is no base64 ({error})") from None
    top = found.get("top")
    return Body(uploads, None if top is None else read_top(top))


def read_top(value: object) -> int:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise BadRequest(f"top must be a whole number from 1 on, got {str(value)[:80]!r}")
    return int(text)


def decode_images(uploads: list[Upload], shape: tuple[int, ...], pixel_limit: int) -> Tensor:
    """(N, C, H, W) pixels, as `ser learn` and `ser predict` decode them."""
    pixels = []
    for row, upload in enumerate(uploads):
        try:
            pixels.append(torch.from_numpy(decode_bytes(upload.content, shape, pixel_limit)))
        except TooManyPixels as error:
            raise BadRequest(f"image #{row} {error}", 413) from None
        except (BadImage, OSError) as error:
            raise BadRequest(f"image #{row} {error}") from None
    return torch.stack(pixels)
