"""Files for a production machine: the nightly script runs; unit and Dockerfile name options that exist."""

import os
import re
import shutil
import subprocess
import sys
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
