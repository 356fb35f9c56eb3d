"""The site builds without a warning, its commands are accepted, and its reference names all there is."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.parsing import COMMANDS, parse_command
from support.repository import ROOT, in_repository

from strongreplay.data.streams import STREAMS
from strongreplay.methods.table import METHOD_ROWS
from strongreplay.runs.sweep import Sweep, add_options, collect_settings

PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [
        in_repository("README.md"),
        in_repository("CONTRIBUTING.md"),
        *sorted(in_repository("docs").rglob("*.md")),
    ]
}
MADE = ("commands", "settings")  # of the reference, from the code
PYTHON = {
    f"{name}#{number}": block
    for name, text in PAGES.items()
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    # tests/test_readme.py and tests/test_tutorial.py run these pages
    if name not in ("README.md", "docs/tutorial-own-method.md")
}


def commands_of(text: str) -> Iterator[list[str]]:
    """The words of every `ser` command in the shell blocks of a page, up to a pipe or the like."""
    for kind, block in re.findall(r"^```(sh|console)\n(.*?)^```", text, flags=re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            if kind == "console" and not line.startswith("$ "):
                continue  # output
            if found := re.search(r"(?:^|\s)ser ([a-z].*)$", line):
                yield shlex.split(re.split(r"[;|>]", found[1])[0], comments=True)


@pytest.mark.parametrize("name", PAGES)
def test_commands_in_the_docs_are_accepted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file, content in re.findall(r"```toml\n# (\S+\.toml)\n(.*?)```", PAGES[name], flags=re.S):
        (tmp_path / file).write_text(content)
    for words in commands_of(PAGES[name]):
        command, given = parse_command(words)
        if command is COMMANDS["run"] and given["stream"] in STREAMS and given["recipe"] == "published":
            methods = [
                method for text in given["method"] for method in text.split(",") if ".py" not in method
            ]
            settings = add_options(
                collect_settings(given["settings"]), {key: given[key] for key in ("memory", "net", "tasks")}
            )
            assert Sweep(given["stream"], methods, [0], settings).configs()  # every setting exists and fits


def test_options_in_the_docs_exist() -> None:
    every = {option for command in COMMANDS.values() for one in command.params for option in one.opts}
    every |= {"--install-completion", "--show-completion", "--help", "--signal"}  # the last one is Slurm's
    for path in in_repository("benchmarks").glob("*.py"):
        every |= set(re.findall(r'"(--[a-z-]+)"', path.read_text()))
    for name, text in PAGES.items():
        text = text.replace("`ser run --m`", "")  # what the Tab key completes
        for span in re.findall(r"`(ser [^`]*|--[^`]*)`", text):
            typed = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", span))
            assert typed <= every, (name, span, typed - every)


@pytest.mark.slow
@pytest.mark.parametrize("name", PYTHON)
def test_python_in_the_docs_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(PYTHON[name], {})


@pytest.mark.slow
def test_the_site_builds_with_every_link_right_and_a_complete_reference(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.parent.name: path.read_text() for path in (tmp_path / "site").rglob("index.html")}
    for name in ("learn", "run", "serve", "reproduce report", "doctor"):
        assert f"ser {name}</code>" in pages["commands"]
    for row in METHOD_ROWS.values():
        assert f"<code>{row.name}</code>" in pages["settings"] + pages["methods"]
    assert "method.alpha" in pages["settings"]
    assert 'class="doc doc-heading"' in pages["python"]
    text = "".join(pages.values())
    assert "fonts.googleapis" not in text  # nothing is loaded from the network
    assert '<script src="http' not in text


@pytest.mark.parametrize("name", PAGES)
def test_links_of_files_lead_somewhere(name: str) -> None:
    """MkDocs checks its own pages; here they are files, as in a clone, and the README is among them."""
    made = {"docs/contributing.md", "docs/changelog.md", *(f"docs/reference/{n}.md" for n in MADE)}
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", PAGES[name], flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not target.startswith("http"):
            path = (ROOT / name).parent / target
            assert path.exists() or os.path.relpath(path.resolve(), ROOT) in made, (name, target)


def test_every_method_has_its_formula_with_the_weights_it_can_be_given() -> None:
    text = (ROOT / "docs" / "formulas.md").read_text()
    sections = {
        name: body
        for title, body in re.findall(r"^### ([^\n]+)\n(.*?)(?=^##|\Z)", text, flags=re.M | re.S)
        for name in re.findall(r"`([\w-]+)`", title)
    }
    assert set(sections) == set(METHOD_ROWS)
    for row in METHOD_ROWS.values():
        assert "```text\n" in sections[row.name], row.name
        for setting, field in row.config.model_fields.items():
            if field.annotation is float and "weight" in (field.description or ""):
                assert re.search(rf"\b{setting}\b", sections[row.name]), f"{row.name}: {setting} is missing"
