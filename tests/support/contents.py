"""Contents of files: written into a folder, changed at random, and compared."""

import json
from collections.abc import Mapping
from pathlib import Path


def write(folder: Path, contents: Mapping[str, bytes | str]) -> Path:
    """Files by their path in the folder."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def mutate(content: bytes, edits: list[tuple[int, bytes]]) -> bytes:
    """At each place, a byte is replaced by others."""
    for place, patch in edits:
        start = place % (len(content) + 1)
        content = content[:start] + patch + content[start + 1 :]
    return content


def same_json(first: bytes, second: bytes) -> bool:
    try:
        return bool(json.loads(first) == json.loads(second))
    except ValueError:
        return False
