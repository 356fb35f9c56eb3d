"""Files for a production machine: the nightly script runs; unit and Dockerfile name options that exist."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.kept_models import NAMES, QUICK, ser, write_folder
from support.repository import in_repository

DEPLOY = in_repository("deploy")


@pytest.mark.slow
def test_the_nightly_script_learns_moves_and_stops_at_a_refusal(tmp_path: Path) -> None:
    state, inbox, done = tmp_path / "model", tmp_path / "inbox", tmp_path / "done"
    command = tmp_path / "ser"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m strongreplay "$@"\n')
    command.chmod(0o755)

    def night(*words: str) -> subprocess.CompletedProcess[str]:
        call = ["sh", str(DEPLOY / "learn-nightly.sh"), str(state), str(inbox), str(done), *words]
        return subprocess.run(call, capture_output=True, text=True, env=os.environ | {"SER": str(command)})

    inbox.mkdir()
    assert (night().returncode, state.exists()) == (0, False)  # nothing to do
    settings = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
    write_folder(inbox, (0, 1), 0, 20)
    first = night(*settings)
    assert first.returncode == 0, first.stderr
    assert [path.name for path in inbox.iterdir()] == []
    assert len(list(done.rglob("*.png"))) == 40
    guard = write_folder(tmp_path / "guard", (0, 1), 60, 40)
    swapped = write_folder(tmp_path / "swapped", (0, 1), 20, 40)
    shutil.move(swapped / NAMES[0], inbox / NAMES[1])  # labels exchanged: both old classes fall
    shutil.move(swapped / NAMES[1], inbox / NAMES[0])
    refused = night("--guard", str(guard), "--set", "train.epochs=20")
    assert refused.returncode == 3, refused.stderr
    assert len(list(inbox.rglob("*.png"))) == 80  # nothing was moved
    again = night()
    assert again.returncode == 3
    assert "was refused" in again.stderr
    assert ser("status", state, "--json").code == 0


def test_unit_and_dockerfile_name_options_that_exist() -> None:
    text = ser("serve", "--help").out
    for name in ("Dockerfile", "ser-serve.service"):
        line = re.search(r"(ExecStart=|ENTRYPOINT ).*", (DEPLOY / name).read_text())
        assert line is not None
        for option in re.findall(r"--[a-z-]+", line.group()):
            assert option in text, option


def test_the_image_installs_tested_versions_as_a_user_without_rights(tmp_path: Path) -> None:
    """The image is not built here: its lines are read, and the one that picks the versions is run."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    known = {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT"}
    assert {word for word, _ in lines} <= known
    for word, rest in lines:
        sources = rest.split()[:-1] if word == "COPY" and "--from" not in rest else []
        assert all(in_repository(name).exists() for name in sources), rest
        assert word != "FROM" or re.fullmatch(r"python:3\.11-slim-bookworm( AS build)?", rest)
    order = [word for word, _ in lines]
    assert order.index("USER") > max(place for place, word in enumerate(order) if word in ("RUN", "COPY"))
    assert dict(lines[-7:])["USER"] == "ser"
    pick = next(rest for word, rest in lines if word == "RUN" and rest.startswith("sed")).split(" > ")[0]
    shutil.copy(in_repository("requirements-dev.lock"), tmp_path)
    said = subprocess.run(["sh", "-c", pick], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in said.splitlines()}
    project = tomllib.loads(in_repository("pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["serve"], *extras["photos"]]
    names = {re.split(r"[<>=\[]", one)[0].lower().replace("_", "-") for one in wanted}
    assert names <= pinned, names - pinned
    assert "+" not in said  # a local version, such as torch for the CPU, is in few indexes
