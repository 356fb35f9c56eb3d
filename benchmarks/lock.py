"""Write the lock file of the development environment, with hashes, from the installed versions.

Takes about 20 minutes, since pip reads the sums of every distribution.

    python benchmarks/lock.py

Needs pip-tools (`pip install '.[dev]'`). The file names no registry: pip looks where it is set up to look.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements-dev.lock"
HEAD = """# Versions and sums of the development environment: Linux x86-64, Python 3.11, torch for the CPU.
# Install: pip install --require-hashes -r requirements-dev.lock && pip install --no-deps -e .
# Made by: python benchmarks/lock.py
"""
QUIET = ["--no-header", "--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host"]


def main() -> None:
    words = [sys.executable, "-m", "pip", "freeze"]
    frozen = subprocess.run(words, capture_output=True, text=True, check=True)
    lines = [line for line in frozen.stdout.splitlines() if re.fullmatch(r"[\w.-]+==[\w.+!-]+", line)]
    with tempfile.TemporaryDirectory() as folder:
        pins, out = Path(folder, "pins.txt"), Path(folder, "lock.txt")
        pins.write_text("\n".join(line for line in lines if not line.startswith("strongreplay")))
        words = ["--generate-hashes", "--extra", "dev", "--strip-extras", "--allow-unsafe", *QUIET]
        words += ["--constraint", str(ROOT / "constraints.txt"), "--constraint", str(pins)]
        words += ["--no-annotate", "--output-file", str(out), str(ROOT / "pyproject.toml")]
        subprocess.run([sys.executable, "-m", "piptools", "compile", "--quiet", *words], check=True)
        lines = out.read_text().splitlines()
    text = "\n".join(line for line in lines if line and not line.lstrip().startswith(("#", "strongreplay @")))
    if "://" in text:
        raise SystemExit("the lock file would name an address; set pip up without it")
    LOCK.write_text(f"{HEAD}{text}\n")
    print(f"{text.count('==')} distributions in {LOCK.name}")


if __name__ == "__main__":
    main()
