"""Runs the commands of a tutorial and writes their output below them.

    python benchmarks/walkthrough.py docs/keep.md DATA_FOLDER
    python benchmarks/walkthrough.py docs/tutorial-sweep.md
    python benchmarks/walkthrough.py docs/tutorial-cluster.md

Every line that begins with `$ ` in a console block is run in a shell, in a folder of its own. With a data
folder, it has the photos that docs/keep.md mentions: images of CIFAR-100, enlarged. Blocks of TOML that begin
with a comment such as `# night.toml` are written to that file first. Pictures that commands write to
`pictures/` are copied to a folder next to the page.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageEnhance, ImageOps

from strongreplay.data.datasets import load
from strongreplay.protocol import Split

LABELS = {"bed": 5, "bottle": 9, "chair": 20, "clock": 22, "cup": 28, "lamp": 40, "phone": 86}  # of CIFAR-100
SIDE = 160
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
PROGRESS = re.compile(r".*: \d+ of \d+$|.* \d+ %; (about|time left).*")  # of slow machines only
FILE = re.compile(r"```toml\n# (\S+\.toml)\n(.*?)```", re.DOTALL)


def write(split: Split, folder: Path, counts: dict[str, int], first: int = 0, dark: bool = False) -> None:
    """Write `counts` photos of each class, starting at number `first` of the class."""
    for name, count in counts.items():
        rows = (split.labels == LABELS[name]).nonzero().flatten()[first : first + count]
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        for row in rows.tolist():
            image = Image.fromarray(split.inputs[row].permute(1, 2, 0).numpy())
            image = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            if dark:  # another camera: darker and mirrored photos
                image = ImageEnhance.Brightness(ImageOps.mirror(image)).enhance(0.25)
            image.save(place / f"{row:05d}.jpg", quality=90)


def make_months(data: Path, folder: Path) -> None:
    train, test = load("cifar100", data)
    write(train, folder / "january", dict.fromkeys(("bottle", "chair", "clock", "lamp"), 150))
    write(train, folder / "february", dict.fromkeys(("bed", "cup"), 150))
    write(train, folder / "march-wrong", {"phone": 150})
    # The mistake in March: chairs are in the folder of beds.
    write(train, folder / "march-wrong" / "tmp", {"chair": 150}, first=150)
    shutil.move(folder / "march-wrong" / "tmp" / "chair", folder / "march-wrong" / "bed")
    (folder / "march-wrong" / "tmp").rmdir()
    write(train, folder / "march", {"phone": 150})
    write(train, folder / "march", {"clock": 100, "lamp": 100}, first=150, dark=True)
    write(test, folder / "checked", dict.fromkeys(("bed", "bottle", "chair", "clock", "cup", "lamp"), 50))
    write(test, folder / "checked-dark", {"clock": 50, "lamp": 50}, first=50, dark=True)


def run_block(block: str, folder: Path) -> str:
    """The block's commands, each followed by its output."""
    lines = []
    for line in block.splitlines():
        if not line.startswith("$ "):
            continue
        environment = os.environ | {"COLUMNS": "100", "OMP_NUM_THREADS": "1", "TERM": "dumb"}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        done = subprocess.run(
            line[2:], shell=True, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        said = [part.rstrip() for part in done.stdout.rstrip().splitlines()]
        lines += [line, *(part for part in said if not PROGRESS.match(part))]
        print(f"{done.returncode}: {line}", flush=True)
    return "```console\n" + "\n".join(lines) + "\n```"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path)
    parser.add_argument("data", type=Path, nargs="?")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pictures").mkdir()
        if options.data:
            make_months(options.data, folder)
        text = options.page.read_text()
        for file, content in FILE.findall(text):
            (folder / file).write_text(content)
        options.page.write_text(BLOCK.sub(lambda match: run_block(match[1], folder), text))
        beside = options.page.with_suffix("")
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(folder / "pictures", beside)


if __name__ == "__main__":
    main()
