"""A hash of the sources of this package that the results of a run depend on.

Comments, docstrings and empty lines are left out, and so are reports, commands and other methods.
"""

import ast
import hashlib
import io
import tokenize
from functools import cache
from pathlib import Path
from subprocess import SubprocessError

from strongreplay.nets import net_row
from strongreplay.runs.config import RunConfig
from strongreplay.runs.machine import CLONE, ask_git

ROOT = Path(__file__).parents[1]
# Sources that every run uses; a folder means all its files.
COMMON: tuple[str, ...] = ("protocol.py", "memory.py", "sampling.py", "metrics.py", "data", "training")
COMMON += ("nets/classifier.py", "nets/features.py", "nets/numerics.py", "methods/base.py")
COMMON += ("runs/run.py", "runs/scores.py")


def code_hash(config: RunConfig) -> str:
    """A hash, 12 characters long, of the sources that a run of this configuration uses."""
    return hash_of((*common_files(), *method_and_net_files(config)))


def method_and_net_files(config: RunConfig) -> tuple[Path, ...]:
    net = net_row(config.net.name, config.code.get("net")).build.__module__
    return *own_files(config.row.method_class.__module__), *own_files(net)


def is_being_edited(config: RunConfig, clone: Path = CLONE) -> bool:
    """Whether git reports changes in a file of the method or the net since the last commit."""
    paths = method_and_net_files(config)
    return bool(paths) and (clone / ".git").exists() and _has_changes(paths, clone)


@cache
def _has_changes(paths: tuple[Path, ...], clone: Path) -> bool:
    try:
        return bool(ask_git(clone, "status", "--porcelain", "--untracked-files=all", "--", *map(str, paths)))
    except (OSError, SubprocessError):
        return False


@cache
def common_files() -> tuple[Path, ...]:
    found = [ROOT / name for name in COMMON]
    return tuple(file for path in found for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path]))


@cache
def own_files(module: str) -> tuple[Path, ...]:
    """The file of a built-in method or net, and the files of its package it imports; empty for a user's."""
    if not module.startswith(("strongreplay.methods.", "strongreplay.nets.")):
        return ()
    room, found, waiting = module.rpartition(".")[0], dict[str, Path](), [module]
    while waiting:
        name = waiting.pop()
        path = ROOT.joinpath(*name.split(".")[1:]).with_suffix(".py")
        if name not in found and path.is_file():
            found[name] = path
            tree = ast.parse(path.read_bytes())
            imports = [
                node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
            ]
            waiting += [each for each in imports if each.startswith(f"{room}.")]
    return tuple(sorted(found.values()))


@cache
def hash_of(paths: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for path in dict.fromkeys(paths):
        digest.update(hashlib.sha256(substance(path.read_text(encoding="utf-8")).encode()).digest())
    return digest.hexdigest()[:12]


def substance(source: str) -> str:
    """A source without comments, docstrings and empty lines."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            text = node.body[0]
            if not lines[text.lineno - 1][: text.col_offset].strip():  # no code before it on its line
                lines[text.lineno - 1 : text.end_lineno] = [""] * ((text.end_lineno or 0) - text.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())
