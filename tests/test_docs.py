"""The site builds without a warning, and its reference names every command, setting and method."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from strongreplay.methods.table import METHOD_ROWS

ROOT = Path(__file__).parent.parent


PYTHON = {
    f"{path.relative_to(ROOT / 'docs')}#{number}": block
    for path in sorted((ROOT / "docs").rglob("*.md"))
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL))
    if path.name != "tutorial-own-method.md"  # tests/test_tutorial.py runs that page
}


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
