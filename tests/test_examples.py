"""The examples run, without a warning, and the notebooks are committed with their outputs."""

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.repository import in_repository

FOLDER = in_repository("examples")
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def outputs_of(notebook: Any) -> list[list[Any]]:
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_committed_notebooks_have_outputs_and_no_errors(name: str) -> None:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(FOLDER / name, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for each in outputs_of(notebook) for output in each]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert len(outputs) >= 3
    text = (FOLDER / name).read_text()
    for private in (str(FOLDER.parent), str(Path.home()), "/tmp/", "/site-packages/"):
        assert private not in text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries; those of the cells stop the execution
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run(name: str) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    executed = runpy.run_path(str(FOLDER / "execute.py"))["execute"](FOLDER / name)
    nbformat = pytest.importorskip("nbformat")
    committed = nbformat.read(FOLDER / name, as_version=4)
    kinds = [
        [[output.output_type for output in each] for each in outputs_of(one)] for one in (executed, committed)
    ]
    assert kinds[0] == kinds[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["er_ace.py"], ""),
        (["forgetting.py", "drawn.png", "--seeds", "2", "--epochs", "4"], "SER: "),
        (["explain.py", ".", "--seeds", "2", "--epochs", "4"], "+ forward consistency: "),
    ],
    ids=["er_ace", "forgetting", "explain"],
)
def test_scripts_run_without_a_warning(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / arguments[0]), *arguments[1:]],
        cwd=tmp_path, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert said in done.stdout
    drawn = {"forgetting.py": ["drawn.png"], "explain.py": ["answers.png", "terms.png"]}.get(arguments[0], [])
    for name in drawn:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_every_script_is_run() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == {
        "er_ace.py",
        "explain.py",
        "forgetting.py",
        "execute.py",
    }
    assert set(NOTEBOOKS) == {"compare.ipynb", "keep.ipynb", "own_method.ipynb"}
