"""Mutations of files: of bytes, of JSON trees, and of formats whose checksums are made right again."""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

NUMBERS = [0, 1, 2, 3, 7, 8, 16, 63, 64, 127, 128, 255, 256, 1000, 32767, 65535, 65536, 10**6, 10**7]
NUMBERS += [2**31 - 1, 2**31, 2**32 - 1, 2**32, 10**12, 2**53, 2**63 - 1, 2**63, 2**64 - 1]
NUMBERS += [-1, -2, -(2**31), -(2**63)]
TEXTS = [
    "",
    "a",
    "0",
    "\x00",
    "\ud800",
    "\u202e",
    "../../x",
    "/etc/passwd",
    "%s%n",
    "=1+1",
    "v1",
    "candidate",
]
TEXTS += ["x" * 300, "[red]", "</script>", "\x1b[31m", "nan", "none", "\n", "'", '"', "{", "²"]
TOKENS = [b"", b"\x00" * 8, b"\xff" * 8, b"\n", b",", b'"', b"{", b"[" * 400, b"NaN", b"Infinity", b"1e999"]
TOKENS += [
    b"|O",
    b"|V0",
    b"<f8",
    b"(1000000000,)",
    b"(-1, 2)",
    b"IHDR",
    b"IDAT",
    b"PLTE",
    b"tRNS",
    b"\xff\xd8",
]
TOKENS += [b"9" * 5000, b"null", b"true", b"\xef\xbb\xbf", b"streams", b"../", b"\r\n", b"F64", b"U8"]
FLOATS = [float("nan"), float("inf"), -1e308, 1e-308, 0.5]

Mutator = Callable[[bytes, Random], bytes]


def mutate_bytes(data: bytes, chance: Random) -> bytes:
    """One to about six changes of bytes."""
    while True:
        data = chance.choice(CHANGES)(data, chance)
        if chance.random() < 0.5:
            return data


def place_in(data: bytes, chance: Random) -> int:
    """A place in the data; headers are hit more often than the rest."""
    return chance.randrange(min(len(data), 64) if chance.random() < 0.3 else len(data)) if data else 0


def flip(data: bytes, chance: Random) -> bytes:
    at = place_in(data, chance)
    return data[:at] + bytes([(data[at] if data else 0) ^ (1 << chance.randrange(8))]) + data[at + 1 :]


def put_byte(data: bytes, chance: Random) -> bytes:
    at = place_in(data, chance)
    return data[:at] + bytes([chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))]) + data[at + 1 :]


def put_number(data: bytes, chance: Random) -> bytes:
    at, size = place_in(data, chance), chance.choice((2, 4, 8))
    number: int = chance.choice(NUMBERS) % (1 << 8 * size)
    return data[:at] + number.to_bytes(size, chance.choice(("little", "big"))) + data[at + size :]


def put_digits(data: bytes, chance: Random) -> bytes:
    """Another decimal number in the place of one that is there."""
    places = [at for at in range(len(data[:20_000])) if data[at : at + 1].isdigit()]
    if not places:
        return flip(data, chance)
    start = end = chance.choice(places)
    while data[end : end + 1].isdigit():
        end += 1
    return data[:start] + str(chance.choice(NUMBERS)).encode() + data[end:]


def cut(data: bytes, chance: Random) -> bytes:
    at = place_in(data, chance)
    return data[:at] + data[at + chance.randrange(1, 64) :]


def cut_off(data: bytes, chance: Random) -> bytes:
    return data[: place_in(data, chance)]


def double(data: bytes, chance: Random) -> bytes:
    at, to = place_in(data, chance), place_in(data, chance)
    return data[:to] + data[at : at + chance.randrange(1, 256)] + data[to:]


def put_token(data: bytes, chance: Random) -> bytes:
    at, token = place_in(data, chance), chance.choice(TOKENS)
    return data[:at] + token + data[at + chance.choice((0, len(token))) :]


def put_noise(data: bytes, chance: Random) -> bytes:
    at, size = place_in(data, chance), chance.randrange(1, 32)
    return data[:at] + chance.randbytes(size) + data[at + chance.choice((0, size)) :]


CHANGES: list[Mutator] = [flip, put_byte, put_number, put_digits, cut, cut_off, double, put_token, put_noise]


def any_value(chance: Random) -> Any:
    kinds = (None, True, False, chance.choice(NUMBERS), chance.choice(FLOATS), chance.choice(TEXTS))
    return chance.choice((*kinds, *kinds, [], {}, [chance.choice(NUMBERS)], {"a": chance.choice(NUMBERS)}))


def mutate_tree(tree: Any, chance: Random) -> Any:
    """The tree with another value, key or length at one to about four places."""
    tree = deepcopy(tree)
    while True:
        inner = [node for node in nodes(tree) if node]
        if not inner or chance.random() < 0.01:
            return any_value(chance)
        change(chance.choice(inner), inner, chance)
        if chance.random() < 0.6:
            return tree


def change(node: Any, others: list[Any], chance: Random) -> None:
    """Change one entry of a dict or list."""
    key = chance.choice(list(node) if isinstance(node, dict) else range(len(node)))
    kind = chance.random()
    if kind < 0.5:
        node[key] = any_value(chance)
    elif kind < 0.65:
        del node[key]
    elif kind < 0.8:
        node[key] = deepcopy(chance.choice(others))
    elif isinstance(node, dict):
        node[chance.choice((*TEXTS, "format", "sum"))] = node.pop(key)
    else:
        node.insert(key, deepcopy(node[key]))


def nodes(tree: Any) -> list[Any]:
    """Every dict and list of a tree."""
    found, layer = [], [tree]
    while layer:
        layer = [node for node in layer if isinstance(node, dict | list)]
        found += layer
        layer = [part for node in layer for part in (node.values() if isinstance(node, dict) else node)]
    return found


def mutate_json(data: bytes, chance: Random) -> bytes:
    return json.dumps(mutate_tree(json.loads(data), chance)).encode()


def mutate_png(data: bytes, chance: Random) -> bytes:
    """A PNG with changed, doubled or missing parts and right checksums."""
    parts, at = [], 8
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        parts.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += size + 12
    number, kind = chance.randrange(len(parts)), chance.random()
    if kind < 0.15:
        del parts[number]
    elif kind < 0.3:
        parts.insert(chance.randrange(len(parts)), parts[number])
    else:
        parts[number] = (parts[number][0], mutate_bytes(parts[number][1], chance))
    body = b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in parts
    )
    return data[:8] + body


def mutate_zip(data: bytes, chance: Random) -> bytes:
    """A zip file with one changed member or name and right checksums."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        names = old.namelist()
        hit = chance.choice(names)
        for name in names:
            content = old.read(name)
            if name == hit:
                content = mutate_bytes(content, chance)
                name = chance.choice((name, name, name, chance.choice(names), "x.npy"))
            if name not in new.namelist():
                new.writestr(name, content)
    return file.getvalue()


def mutate_tensors(data: bytes, chance: Random) -> bytes:
    """A safetensors file with a changed header, whose length is right, or changed numbers."""
    size = int.from_bytes(data[:8], "little")
    if chance.random() < 0.2:
        return data[: 8 + size] + mutate_bytes(data[8 + size :], chance)
    header = json.dumps(mutate_tree(json.loads(data[8 : 8 + size]), chance)).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]
