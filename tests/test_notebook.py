"""In a real notebook: bars and tables without escape codes or warnings, and readable reprs."""

import json
from typing import Any

import pytest

CELLS = [
    'from strongreplay import build_stream\nstream = build_stream("split-digits", seed=0)\nstream',
    "stream[0]",
    "import strongreplay.progress as progress\n"
    "progress.PATIENCE_SECONDS = progress.READING_SECONDS = 0\n"
    "with progress.Bar() as bar:\n"
    '    for number in range(5):\n        bar("reading", number, 5)\n',
    "from strongreplay.cli.tables import Table, print_table\n"
    "from strongreplay.cli.text import print_line\n"
    'print_table(Table(["method", "accuracy"], [["SER", "92.35"]], "a title"))\n'
    'print_line("bold", bold=True)',
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
def test_bars_and_tables_in_a_notebook() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [[text_of(output) for output in cell.outputs] for cell in notebook.cells]
    stream, task, bar, table = (" ".join(texts) for texts in outputs)
    assert "Stream(class-il, 5 tasks, 10 classes, inputs (1, 8, 8))" in stream
    assert "Task(0, classes [0, 1]" in task
    assert "reading" in bar
    assert "method  accuracy" in table
    assert "SER        92.35" in table
    for text in (bar, table):
        assert "\\u001b" not in text
        assert "Warning" not in text


def text_of(output: Any) -> str:
    return json.dumps(output.get("data") or output.get("text") or output.get("evalue"))
