"""ser review: copy the photos most worth a label into a folder that a labelling tool can import."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import typer

from strongreplay.cli.commands import KEEP, Command
from strongreplay.cli.drift import collect
from strongreplay.cli.options import Device, StateFolder, Threads, VersionName, choose_device
from strongreplay.cli.text import count_of, print_line
from strongreplay.errors import ConfigError, RunError
from strongreplay.progress import Bar

if TYPE_CHECKING:
    from strongreplay.data.user_data import Label
    from strongreplay.models.review import Candidate

LOCAL_FILES = "/data/local-files/?d="  # how Label Studio addresses files of its local storage
HEADER = ("path", "label", "guess", "probability", "unsure", "unlike", "source")


def review_command(
    state: StateFolder,
    data: Annotated[list[str], typer.Option("--data", help="Images or folders of images, without labels.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new or empty folder.")] = Path("review"),
    count: Annotated[int, typer.Option(min=1, help="How many photos.")] = 50,
    version: VersionName = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Choose the photos most worth a label: unsure, unlike what the model knows, and unlike each other.

    The folder gets the photos, review.csv with the model's guess of each, and for Label Studio
    tasks.json and labels.xml. What comes back as CSV has the columns path and label, among others:
    save it in the folder as corrections.csv, then: ser learn STATE --data review/corrections.csv

    Example: ser review shop --data inbox/ --out review
    """
    from strongreplay.models.load import load_model
    from strongreplay.models.review import ReviewCollector
    from strongreplay.models.store import Store
    from strongreplay.models.write_samples import expect_empty

    expect_empty(out)
    _, model = load_model(Store(state), version, choose_device(device, threads))
    collector = ReviewCollector(model)
    collect(collector, data)
    chosen = collector.choose(count)
    try:
        write_review(out, chosen, model.labels)
    except OSError as error:
        raise RunError(
            f"{out}: could not be written ({error.strerror or error}); make room or choose another folder"
        ) from None
    print_line(f"{out}: {count_of(len(chosen), 'photo')} of {len(collector.names):,}, see review.csv")
    print_line(f"save their labels there, then: ser learn {state} --data {out}/corrections.csv")


def write_review(out: Path, chosen: "Sequence[Candidate]", labels: "Sequence[Label]") -> None:
    from strongreplay.storage import files

    paths = [f"photos/{number:03d}{Path(one.name).suffix.lower()}" for number, one in enumerate(chosen, 1)]
    with Bar() as bar:
        for number, (path, one) in enumerate(zip(paths, chosen, strict=True)):
            if not Path(one.name).is_file():  # a row of an array
                raise ConfigError(f"{one.name}: rows of arrays are no photos; give images or folders")
            files.make_folder((out / path).parent)
            files.write_bytes(out / path, Path(one.name).read_bytes())
            bar("copying", number + 1, len(chosen))
    rows = [
        (path, "", one.guess, f"{one.probability:.4f}", f"{one.unsure:.3f}", f"{one.unlike:.3f}", one.name)
        for path, one in zip(paths, chosen, strict=True)
    ]
    files.write_text(out / "review.csv", files.csv_text([HEADER, *rows]))
    tasks = [label_task(path, one) for path, one in zip(paths, chosen, strict=True)]
    files.write_text(out / "tasks.json", json.dumps(tasks, indent=1) + "\n")
    files.write_text(out / "labels.xml", label_config(labels))


def label_task(path: str, one: "Candidate") -> dict[str, Any]:
    """A task for Label Studio, with the model's guess as a prediction."""
    result = {"from_name": "label", "to_name": "image", "type": "choices"}
    guess = {"choices": [str(one.guess)]}
    return {
        "data": {"image": f"{LOCAL_FILES}{quote(path)}", "path": path},
        "predictions": [{"score": one.probability, "result": [result | {"value": guess}]}],
    }


def label_config(labels: "Sequence[Label]") -> str:
    """The labelling interface: the photo and one choice for each class."""
    choices = "".join(f"    <Choice value={quoteattr(str(label))}/>\n" for label in labels)
    return (
        '<View>\n  <Image name="image" value="$image"/>\n'
        f'  <Choices name="label" toName="image">\n{choices}  </Choices>\n</View>\n'
    )


COMMAND = Command("review", review_command, KEEP, 32)
