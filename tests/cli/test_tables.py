"""A table fits the terminal without cutting a cell, and says the same to programs."""

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from support.repository import in_repository

from strongreplay.cli.tables import Format, Table, TableCell, print_table
from strongreplay.cli.text import print_text

NUMBERS = Table(
    ("method", "memory", "Class-IL\naccuracy", "Class-IL\nforgetting", "Task-IL\naccuracy", "n"),
    [
        ("SER", "200", TableCell("85.10 ± 0.21", {"mean": 85.1}, True), "9.12 ± 1.00", "98.12 ± 10.50", "5"),
        ("DER++ (alpha=3, beta=0.5)", "5,120", TableCell("8.00", {"mean": 8.0}), "-", "97.00 ± 0.10", "10"),
    ],
    "accuracies",
    wraps=["method"],
    num_keys=2,
)
WORDS = Table(
    ("cell", "seeds", "verdict", "note"),
    [("table2/p-mnist/m200/ser/class-il", "5", "below", "a | note with\tmany words " * 3)],
    wraps=["cell", "note"],
    optional=["note"],
)


def numbers_in(lines: list[str]) -> set[str]:
    return {word for line in lines for word in line.split() if any(sign.isdigit() for sign in word)}


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_number_is_cut_and_no_line_is_too_long(width: int) -> None:
    lines = NUMBERS.layout(width)
    assert max(map(len, lines)) <= width
    expected = {"85.10", "0.21", "9.12", "1.00", "98.12", "10.50", "8.00", "97.00", "0.10", "5,120", "10"}
    assert numbers_in(lines) >= expected
    assert "…" not in "".join(lines)


def test_a_table_that_fits_is_in_columns_with_numbers_to_the_right() -> None:
    heads, names, first, second = NUMBERS.layout(200)
    assert heads.split() == ["Class-IL", "Class-IL", "Task-IL"]
    assert names.split() == ["method", "memory", "accuracy", "forgetting", "accuracy", "n"]
    assert first.index("85.10 ± 0.21 *") + len("85.10 ± 0.21") == second.index("8.00") + len("8.00")
    assert first.endswith("  5")
    assert second.endswith(" 10")


def test_a_narrow_table_is_split_and_every_block_names_its_rows() -> None:
    lines = NUMBERS.layout(60)
    first, second = (line.split() for line in lines if line.startswith("SER "))
    assert first == ["SER", "200", "85.10", "±", "0.21", "*", "9.12", "±", "1.00"], "one scenario a block"
    assert second == ["SER", "200", "98.12", "±", "10.50", "5"]


def test_words_wrap_then_the_optional_columns_go_then_rows_are_stacked() -> None:
    wrapped, dropped = WORDS.layout(70), WORDS.layout(40)
    assert any(line.startswith("table2/p-mnist/") for line in dropped)
    assert "not shown at this width: note" in dropped
    assert not any("not shown" in line for line in wrapped)
    stacked = Table(WORDS.columns, WORDS.rows, wraps=["note"]).layout(40)
    assert stacked[0] == "table2/p-mnist/m200/ser/class-il"
    assert stacked[1] == "  seeds    5"
    assert max(map(len, stacked)) <= 40


def test_settings_and_names_are_broken_between_their_parts_only() -> None:
    text = "method.penalty=10.0 method.attention_weight=0.0001 terms=current,replay,backward,forward"
    table = Table(
        ["recipe", "settings", "note"], [["paper", text, ""]], wraps=["settings"], optional=["note"]
    )
    words = " ".join(line[7:].strip() for line in table.layout(34)[1:])
    assert words.replace("= ", "=").replace(", ", ",") == text
    assert "note" not in table.layout(34)[0], "an optional column without any text is left out"
    assert any("method.penalty=10.0" in line for line in table.layout(34)), "short enough to stay whole"


def test_stacked_rows_begin_with_all_their_keys_and_wide_letters_fit() -> None:
    rows = [("p-mnist", "ser", 200, "learning " * 9, "二" * 30)]
    table = Table(
        ["stream", "method", "memory", "source", "class"], rows, wraps=["source", "class"], num_keys=2
    )
    lines = table.layout(40)
    assert lines[:2] == ["p-mnist  ser", "  memory  200"]
    assert max(map(cell_len, lines)) <= 40
    assert sum(line.count("二") for line in lines) == 30


def test_in_a_pipe_a_row_is_one_line_and_control_characters_are_escaped() -> None:
    head, row = WORDS.layout()
    assert head.startswith("cell ")
    assert row.count(r"a | note with\tmany words") == 3
    table = Table(["settings", "source"], [["a=1", "paper"], ["b=2 " * 99, "ours"]], wraps=["settings"])
    _, short, long = table.layout()
    assert short == f"{'a=1':60}  paper", "one long cell does not fill all lines with spaces"
    assert long == f"{'b=2 ' * 99}  ours"


def printed(form: Format, capsys: pytest.CaptureFixture[str], table: Table = NUMBERS) -> str:
    print_table(table, form)
    return capsys.readouterr().out


def test_a_table_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(printed("csv", capsys))))
    assert [row["method"] for row in rows] == ["SER", "DER++ (alpha=3, beta=0.5)"]
    assert [float(row["Class-IL accuracy mean"]) for row in rows] == [85.1, 8.0]
    first = json.loads(printed("json", capsys))[0]
    assert first["Class-IL accuracy"] == {"mean": 85.1}
    assert first["n"] == "5"
    latex = printed("latex", capsys)
    assert latex.splitlines()[:2] == ["% accuracies", r"\begin{tabular}{lrrrrr}"]
    assert r"SER & 200 & \textbf{85.10 $\pm$ 0.21} & 9.12 $\pm$ 1.00" in latex
    markdown = printed("markdown", capsys).splitlines()
    assert markdown[0] == "accuracies"
    assert markdown[3] == "| --- | --- | --- | --- | --- | --- |"
    assert "**85.10 ± 0.21**" in markdown[4]
    missing = Table(["method", "p"], [["SER", "-"], ["ER", TableCell("0.02", 0.02)]])
    assert [row["p"] for row in json.loads(printed("json", capsys, missing))] == [None, 0.02]
    small = Table(["seed", "memory", "p"], [[0, None, TableCell("<0.0001", 1e-9)]])
    assert json.loads(printed("json", capsys, small)) == [{"seed": 0, "memory": None, "p": 1e-9}]
    assert r"0 & - & $<$0.0001 \\" in printed("latex", capsys, small)
    assert r"a \| note" in printed("markdown", capsys, WORDS)


def on_a_terminal(columns: int, *words: str) -> list[str]:
    """The lines of a command on a terminal of this width."""
    master, slave = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "TERM": "dumb"}
    with subprocess.Popen(
        [sys.executable, "-m", "strongreplay", *words], stdout=slave, stderr=slave, env=environment
    ) as process:
        os.close(slave)
        text = b""
        while True:
            try:
                text += (part := os.read(master, 65536))
            except OSError:  # how Linux ends a terminal that nobody writes to any more
                break
            if not part:
                break
        assert process.wait() == 0
    os.close(master)
    return text.decode().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["list", "methods"],
        ["list", "recipes"],
        ["reproduce", "list", "--quick", "--out", "{results}"],
        ["show", "{record}"],
        ["compare", "{results}/seq-mnist", "--picture", "{folder}/picture.png"],
    ],
)
def test_real_tables_fit_eighty_columns(words: list[str], tmp_path: Path) -> None:
    results = in_repository("results")
    record = next(results.glob("p-mnist/ser-*/seed-0.json"))
    places = {"folder": tmp_path, "results": results, "record": record}
    lines = on_a_terminal(80, *(word.format(**places) for word in words))
    prose = ("picture:", "settings:", "recipe:", "made with:", "phases:", "average accuracy", "──")
    rows = [line for line in lines if not line.startswith(prose)]
    plain = [line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in rows]
    titles = [line for line in plain if len(line) > 80 and "±" not in line]
    assert titles == []
    assert not any("…" in line for line in plain)
    assert len(plain) > 20


@pytest.mark.slow
@pytest.mark.parametrize(("flag", "begin"), [("--csv", "net,width,"), ("--markdown", "| net |")])
def test_commands_take_formats(flag: str, begin: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "strongreplay", "list", "nets", flag], capture_output=True, text=True
    )
    assert done.stdout.startswith(begin), done.stderr
    both = subprocess.run(
        [sys.executable, "-m", "strongreplay", "list", "nets", "--csv", "--json"],
        capture_output=True,
        text=True,
    )
    assert both.returncode == 2
    assert "--csv and --json exclude each other" in both.stderr


def test_a_long_line_is_broken_between_words_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    text = "settings: train.milestones=35,45 method.stored_logits=before"
    print_text(text)
    assert capsys.readouterr().out == f"{text}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_text(text)
    assert capsys.readouterr().out.splitlines() == [
        "settings:",
        "train.milestones=35,45",
        "method.stored_logits=before",
    ]
