"""Imports point one way; every module imports alone; nothing unsafe is called; module state is constant."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import strongreplay

ROOT = Path(strongreplay.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py"))

WEIGHTS = ROOT / "nets" / "published.py"  # the only file that reads those of torch.save, without code

# Each room may import itself, those named here, and nothing else of this package.
BASE = {"errors", "protocol"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "protocol": {"errors"},
    "metrics": set(),
    "extensions": {"errors"},
    "sampling": set(),
    "memory": BASE | {"sampling"},
    "data": BASE | {"extensions", "storage"},
    "nets": BASE | {"extensions", "storage"},
    "storage": {"errors", "metrics", ""},
    "methods": BASE | {"data", "extensions", "memory", "nets", "sampling"},
    "training": BASE | {"data", "extensions", "memory", "methods", "metrics", "nets", "storage"},
    "runs": BASE | {"data", "extensions", "methods", "metrics", "nets", "storage", "training", ""},
    "models": BASE | {"data", "memory", "methods", "nets", "sampling", "storage", "training", ""},
    "progress": BASE | {"training"},
    "learner": BASE | {"data", "models", "progress", "storage", "training"},
    "report": {"errors", "methods", "metrics", "runs", "storage"},
    "serve": BASE | {"data", "models", "storage", "training", ""},
    "cli": BASE
    | {
        "data",
        "extensions",
        "learner",
        "methods",
        "metrics",
        "models",
        "nets",
        "progress",
        "report",
        "runs",
        "serve",
        "storage",
        "training",
        "",
    },
    "simulated_device": {"errors"},
    "testing": BASE | {"data", "memory", "methods", "nets", "simulated_device", "training"},
    "__main__": {"cli"},
}


def room_of(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            # "from strongreplay import metrics" may name a room or the package itself
            inside = [f"strongreplay.{a.name}" for a in node.names if (ROOT / f"{a.name}.py").exists()]
            names = inside if node.module == "strongreplay" and inside else [node.module]
        found |= {room_of(name) for name in names if name.split(".")[0] == "strongreplay"}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if room == "__init__":
        return
    assert room in ALLOWED, f"a new room: say in test and docs/design.md what {room} may import"
    assert imported_rooms(path) <= ALLOWED[room] | {room}


@pytest.mark.slow
def test_every_module_imports_alone() -> None:
    names = [".".join(("strongreplay", *path.relative_to(ROOT).with_suffix("").parts)) for path in MODULES]
    names = [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]
    heavy = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, importlib\nfor name in sys.argv[1:]: importlib.import_module(name)",
            *names,
        ],
        capture_output=True,
        text=True,
    )
    assert heavy.returncode == 0, heavy.stderr


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_pickle_no_cuda_calls_no_global_seeds_no_prints_outside_the_command_line(path: Path) -> None:
    text = path.read_text()
    for word in (
        "import pickle",
        "torch.load(",
        "allow_pickle=True",
        ".cuda()",
        "torch.manual_seed(",
        "np.random.seed",
    ):
        is_allowed = word == "torch.load(" and path == WEIGHTS and "weights_only=True" in text
        assert word not in text or is_allowed, word
    if "cli" not in path.parts:
        calls = {
            n.func.id
            for n in ast.walk(ast.parse(text))
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        }
        assert not calls & {"print", "exit", "input", "eval", "exec"}
        assert "os.environ" not in text


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_no_name_stands_for_two_classes() -> None:
    found: dict[str, set[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, set()).add(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: places for name, places in found.items() if len(places) > 1}


def test_public_names_are_all_there() -> None:
    for name in strongreplay.__all__:
        assert getattr(strongreplay, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = strongreplay.nonsense
