"""Methods, nets, streams and listeners from outside: `mine.py:Thing`, or entry points of installed packages.

A file is identified by a hash of its source and its local imports; records store the hash of their code.
"""

import ast
import hashlib
import sys
import traceback
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Literal, NamedTuple, get_args

from strongreplay.errors import ConfigError, unknown

Kind = Literal["method", "net", "stream", "listener"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FILE_MODULE = "strongreplay_file_"  # how the module of a user's file begins
STANDARD_LIBRARY = Path(traceback.__file__).parent


class LoadedObject(NamedTuple):
    """A loaded object, its short name, and the identity of its code."""

    value: object
    name: str
    source_hash: str | None  # a file: hash of its source; an installed package: its version


class _SourceLoader(SourceFileLoader):
    """Runs exactly the source that was hashed, even if the file changes in the meantime."""

    def __init__(self, name: str, path: Path, source: bytes) -> None:
        super().__init__(name, str(path))
        self.source = source

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.source, self.path)


def is_path(text: str) -> bool:
    """Whether a name points into a Python file, as in `mine.py:Thing`."""
    return text.rpartition(":")[0].endswith(".py")


def load_object(text: str, kind: Kind, source_hash: str | None = None) -> LoadedObject:
    """Load `mine.py:Thing` (a path from the current folder) or the entry point of that name.

    With `source_hash`, only that version of the code is accepted: a file that was edited since is refused,
    unless this process has already loaded the requested version.
    """
    return _from_file(text, kind, source_hash) if is_path(text) else _from_package(text, kind, source_hash)


def installed(kind: Kind) -> dict[str, EntryPoint]:
    """Entry points of installed packages in the group strongreplay.methods, .nets, .streams or .listeners."""
    return {point.name: point for point in entry_points(group=f"strongreplay.{kind}s")}


def _from_file(text: str, kind: Kind, expected: str | None) -> LoadedObject:
    file, _, name = text.rpartition(":")
    path = Path(file).absolute()
    module = sys.modules.get(_module_name(path, expected)) if expected else None
    if module is None:
        if not path.is_file():
            raise ConfigError(
                f"{kind} {text}: no file {file} in {Path.cwd()}; give its path from the current folder"
            )
        sources = {source: source.read_bytes() for source in _local_sources(path)}
        found = _hash(sources)
        if expected not in (None, found):
            raise ConfigError(
                f"{file} was edited: this run is of version {expected}, the file is {found}; "
                "put the old source back, or start a new run"
            )
        expected = found
        module = sys.modules.get(_module_name(path, found)) or _run_file(path, sources, found)
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if _is_public(module, key, value)]
        raise unknown(kind, name, own, f"Looked in {file}.")
    return LoadedObject(getattr(module, name), name, expected)


def _is_public(module: ModuleType, key: str, value: object) -> bool:
    return not key.startswith("_") and getattr(value, "__module__", None) == module.__name__


def _module_name(path: Path, source_hash: str) -> str:
    place = hashlib.sha256(str(path).encode()).hexdigest()[:6]
    return f"{FILE_MODULE}{path.stem}_{place}_{source_hash}"


def _run_file(path: Path, sources: dict[Path, bytes], source_hash: str) -> ModuleType:
    """Import the file under a unique module name, so that dataclasses, pydantic and pickle find it."""
    name = _module_name(path, source_hash)
    loader = _SourceLoader(name, path, sources[path])
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    _forget_imports(path.parent, [source for source in sources if source != path])
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"{explain(error)}; fix the file") from None
    finally:
        sys.path.remove(str(path.parent))
    if str(path.parent) not in sys.path:  # for imports inside functions
        sys.path.append(str(path.parent))
    return module


def _forget_imports(folder: Path, sources: list[Path]) -> None:
    """So that no older version of a local import is used, nor a file of its name in another folder."""
    names = {".".join(source.relative_to(folder).with_suffix("").parts) for source in sources}
    names |= {name.removesuffix(".__init__") for name in names}
    for name in names & sys.modules.keys():
        if not _is_of_a_package(getattr(sys.modules[name], "__file__", None) or "<built in>"):
            del sys.modules[name]


def explain(error: BaseException) -> str:
    """The place of an error in a user's code, and its message."""
    return f"{_place(error)}: {_reason(error)}"


def explain_user_fault(error: BaseException) -> str | None:
    """The line of a user's code where an error arose, and what it says; none if no such code was running."""
    packages = {point.module.partition(".")[0] for kind in KINDS for point in installed(kind).values()}
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        module, file = str(frame.f_globals.get("__name__")), frame.f_code.co_filename
        is_users = module.startswith(FILE_MODULE) or module.partition(".")[0] in packages
        if is_users or (place and not _is_of_a_package(file)):  # such as a file that the user's file imports
            place = f"{file}, line {line}"
    return f"{place}: {_reason(error)}; fix the file" if place else None


def _place(error: BaseException) -> str:
    """File and line of the last stack frame that is not in an installed package."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_of_a_package(f.filename)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "in a package"


def _is_of_a_package(file: str) -> bool:
    path = Path(file)
    places = Path(__file__).parent, STANDARD_LIBRARY
    return any(map(path.is_relative_to, places)) or "site-packages" in path.parts or file.startswith("<")


def _reason(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text.strip() else type(error).__name__


def _local_sources(path: Path, seen: set[Path] | None = None) -> Iterator[Path]:
    """The file, and the files in its folder that it imports, directly or indirectly."""
    seen = seen if seen is not None else set()
    if path in seen:
        return
    seen.add(path)
    yield path
    for name in _imported_names(path):
        beside = path.parent / name
        for found in (beside.with_suffix(".py"), *sorted(beside.rglob("*.py"))):
            if found.is_file():
                yield from _local_sources(found, seen)


def _imported_names(path: Path) -> list[str]:
    """The top-level names of all imports in a file; empty for a syntax error, which importing reports."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return sorted(names)


def _hash(sources: dict[Path, bytes]) -> str:
    digest = hashlib.sha256()
    for source in sources.values():
        digest.update(hashlib.sha256(source).digest())
    return digest.hexdigest()[:12]


def _from_package(text: str, kind: Kind, expected: str | None) -> LoadedObject:
    offered = installed(kind)
    if text not in offered:
        raise unknown(kind, text, offered, f"See: ser list {kind}s")
    point = offered[text]
    package = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
    if expected not in (None, package):
        raise ConfigError(
            f"{kind} {text}: this run is of {expected}, installed is {package}; install the first"
        )
    try:
        return LoadedObject(point.load(), text, package)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{kind} {text} of {package} cannot be loaded: {_reason(error)}") from None
