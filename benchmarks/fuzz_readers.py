"""The readers that are fuzzed: each has right files, made by our own code, and ways to mutate them."""

import contextlib
import gzip
import io
import json
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from fuzz_mutate import (
    Mutator,
    any_value,
    mutate_bytes,
    mutate_json,
    mutate_png,
    mutate_tensors,
    mutate_tree,
    mutate_zip,
)
from PIL import Image
from safetensors.torch import save

from strongreplay.cli.compare import make_comparison_table
from strongreplay.data import codec, tinyimagenet
from strongreplay.data.archives import Archive
from strongreplay.data.arrays import open_array
from strongreplay.data.dataset_readers import Dataset, read_members
from strongreplay.data.formats import cifar_member, idx_archives, parse_cifar, parse_idx
from strongreplay.data.image_files import stream_images
from strongreplay.data.images import read_header
from strongreplay.data.layouts import split_data
from strongreplay.data.read_options import ReadOptions
from strongreplay.data.user_data import read_chunk, read_inputs
from strongreplay.data.user_splits import open_user_splits
from strongreplay.errors import SerError
from strongreplay.models.inspect.history import read_history
from strongreplay.models.inspect.status import read_status
from strongreplay.models.learn import LearnRequest, learn
from strongreplay.models.manifest import signed
from strongreplay.models.memory_view import all_images, read_parts
from strongreplay.models.parts import model_of
from strongreplay.models.settings import make_settings
from strongreplay.models.store import Store
from strongreplay.nets import build_net
from strongreplay.report.curves import curves_of
from strongreplay.report.memory_picture import grid_of
from strongreplay.report.tables import group_records
from strongreplay.runs.config import RunConfig, config_of, resolve
from strongreplay.runs.recipes import parse_recipe
from strongreplay.runs.run import Interrupted, StreamTrainer, continue_from, run
from strongreplay.runs.stopped import read_stopped
from strongreplay.storage import files
from strongreplay.storage.checkpoints import MANIFEST, TENSORS, TREE, checkpoints
from strongreplay.storage.records import read_folder
from strongreplay.testing.device import StopAfter
from strongreplay.training.settings import parse_settings

Files = dict[str, bytes]  # path -> content
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Reader:
    """Something that reads files: right ones to start from, a mutation of them, and the reading."""

    name: str
    corpus: Callable[[], list[Files]]
    read: Callable[[Path, Random], object]
    mutators: Mapping[
        str, Mutator
    ]  # ending of a file -> a mutation that keeps its form; bytes are always mutated
    seal: Callable[[Files, Files], Files] = lambda before, after: after  # make checksums right again
    weight: int = 1  # inputs of this reader in a round

    def make(self, chance: Random) -> Files:
        """A mutated input."""
        before = chance.choice(self.corpus())
        after, kind = dict(before), chance.random()
        name = chance.choice(list(before))
        if kind < 0.02:
            del after[name]
        elif kind < 0.04:
            after[name] = b""
        else:
            own = self.mutators.get(name.rpartition(".")[2])
            mutate = own if own and chance.random() < 0.6 else mutate_bytes
            after[name] = mutate(before[name], chance)
        return self.seal(before, after) if chance.random() < 0.8 else after


def draw(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def encoded(form: str, mode: str, **options: Any) -> bytes:
    """An image of 9 x 7 pixels."""
    image = Image.fromarray(draw(0, 9, 7, 3)).convert("RGB")
    image = Image.fromarray(draw(1, 9, 7).astype(np.uint16) << 8) if mode == "I;16" else image.convert(mode)
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def as_npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def as_npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def files_in(folder: Path) -> Files:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# Data of users


@cache
def images() -> list[Files]:
    exif = Image.Exif()
    exif[0x0112] = 6
    made = {
        "png": [encoded("PNG", mode) for mode in ("L", "RGB", "P", "RGBA", "LA", "1", "I;16")],
        "jpg": [
            encoded("JPEG", "L"),
            encoded("JPEG", "RGB", progressive=True),
            encoded("JPEG", "RGB", exif=exif),
        ],
        "jpeg": [encoded("JPEG", "CMYK")],
        "webp": [encoded("WEBP", "RGB"), encoded("WEBP", "RGBA", lossless=True)],
        "bmp": [encoded("BMP", mode) for mode in ("RGB", "L", "P", "1")],
        "gif": [encoded("GIF", mode) for mode in ("RGB", "L", "P")],
        "tif": [
            *(encoded("TIFF", mode) for mode in ("RGB", "L", "1", "CMYK", "I;16")),
            *(
                encoded("TIFF", "RGB", compression=name)
                for name in ("tiff_lzw", "jpeg", "tiff_adobe_deflate")
            ),
        ],
    }
    return [{f"x.{ending}": data} for ending, several in made.items() for data in several]


def read_one_image(folder: Path, chance: Random) -> None:
    path = only_file(folder)
    for _ in stream_images([path], (chance.choice((1, 3)), 8, 8)):
        pass
    read_header(path)


def only_file(folder: Path) -> Path:
    return next((path for path in folder.iterdir() if path.is_file()), folder / "nothing.png")


def content_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


@cache
def photos() -> list[Files]:
    pictures = {"a/x.png": encoded("PNG", "L"), "b/y y.jpg": encoded("JPEG", "RGB")}
    lines = 'path,label\na/x.png,a\n"b/y y.jpg",b\na/x.png, "a, b"\n'
    metadata = '{"file_name": "a/x.png", "label": "a"}\n{"file_name": "b/y y.jpg", "label": 3}\n'
    split = {f"{part}/{name}": data for part in ("train", "val") for name, data in pictures.items()}
    return [
        *(pictures, split, pictures | {"metadata.jsonl": metadata.encode()}),
        *(pictures | {"list.csv": lines.encode()}, {"list.csv": lines.encode()} | pictures),
    ]


@cache
def tables() -> list[Files]:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import ipc, parquet

    cells = [{"bytes": encoded("PNG", mode)} for mode in ("L", "RGB")]
    made = pyarrow.table({"image": cells, "label": [0, 1], "id": ["a", "b"]})
    packed, stream = io.BytesIO(), io.BytesIO()
    parquet.write_table(made, packed)
    with ipc.new_stream(stream, made.schema) as writer:
        writer.write_table(made)
    state = b'{"_data_files": [{"filename": "x.arrow"}]}'
    return [{"x.parquet": packed.getvalue()}, {"x.arrow": stream.getvalue(), "state.json": state}]


def read_photos(folder: Path, chance: Random) -> None:
    table = folder / "list.csv"
    chosen = table if table.exists() and chance.random() < 0.8 else split_data(folder).train
    options = ReadOptions(skip_bad=chance.random() < 0.5)
    read_chunk(chosen, side=chance.choice((None, 4)), options=options)


@cache
def arrays() -> list[Files]:
    labels, texts = np.array([0, 1, 0, 1]), np.array(["a", "b", "a", "b"])
    return [
        {"inputs.npy": as_npy(draw(0, 4, 6, 6)), "labels.npy": as_npy(labels)},
        {"inputs.npy": as_npy(draw(0, 4, 3, 6, 6)), "labels.npy": as_npy(texts)},
        {"inputs.npy": as_npy(np.ones((4, 5), np.float32)), "labels.npy": as_npy(labels)},
        {
            **{"inputs.npy": as_npy(draw(0, 4, 6, 6)), "labels.npy": as_npy(labels)},
            **{"test-inputs.npy": as_npy(draw(1, 4, 6, 6)), "test-labels.npy": as_npy(labels)},
        },
    ]


def read_arrays(folder: Path, chance: Random) -> None:
    with contextlib.suppress(SerError):
        read_inputs(open_array(folder / "inputs.npy"), shape=chance.choice(((1, 6, 6), (5,), None)))
    open_user_splits(f"npy:{folder}", folder / "kept")


@cache
def archives() -> list[Files]:
    labels = np.array([0, 1, 0, 1])
    test = {"test_inputs": draw(1, 4, 6, 6), "test_labels": labels}
    return [
        {"x.npz": as_npz(inputs=draw(0, 4, 6, 6), labels=labels)},
        {"x.npz": as_npz(images=draw(0, 4, 6, 6, 3), y=np.array(["a", "b", "a", "b"]))},
        {"x.npz": as_npz(x=np.ones((4, 5)), labels=labels)},
        {"x.npz": as_npz(inputs=draw(0, 4, 6, 6), labels=labels, **test)},
    ]


def read_archives(folder: Path, chance: Random) -> None:
    with contextlib.suppress(SerError):
        read_chunk(folder / "x.npz", side=chance.choice((None, 4)))
    open_user_splits(f"npz:{folder / 'x.npz'}", folder / "kept")


def read_kept_arrays(folder: Path, chance: Random) -> None:
    """Data that are read a second time, from a cache folder that somebody changed."""
    shutil.rmtree(folder)
    write_files(folder, chance.choice(arrays() + archives()))
    packed = folder / "x.npz"
    name = f"npz:{packed}" if packed.exists() else f"npy:{folder}"
    open_user_splits(name, folder / "kept")
    path = chance.choice([path for path in sorted((folder / "kept").rglob("*.*")) if path.is_file()])
    mutate = mutate_json if path.suffix == ".json" and chance.random() < 0.8 else mutate_bytes
    path.write_bytes(mutate(path.read_bytes(), chance))
    found = open_user_splits(name, folder / "kept")
    for split in (found.train, found.test):
        torch.add(split.inputs[:2], 1)


# Published datasets


def small_dataset(name: str) -> Dataset:
    archives, parse, shape = SMALL[name]
    return Dataset(name, "", shape, 10, 6, 3, archives, read_members, parse)


NAMES = ("train-images", "train-labels", "t10k-images", "t10k-labels")
RECORDS = (
    cifar_member("c/train.bin", "train", 6, 1, shape=(3, 4, 4)),
    cifar_member("c/test.bin", "test", 3, 1, shape=(3, 4, 4)),
)
SMALL: dict[str, Any] = {
    "idx": (idx_archives("m", (), dict.fromkeys(NAMES, ("0", None)), (6, 3), 4), parse_idx, (1, 4, 4)),
    "cifar": ((Archive("c.tar.gz", "md5:0", (), RECORDS),), parse_cifar, (3, 4, 4)),
}


@cache
def idx() -> list[Files]:
    plain = {}
    for name, count in zip(NAMES, (6, 6, 3, 3), strict=True):
        sizes = [count, 4, 4] if "images" in name else [count]
        head = (0x803 if "images" in name else 0x801).to_bytes(4, "big")
        head += b"".join(size.to_bytes(4, "big") for size in sizes)
        plain[f"m/{name}"] = head + bytes(np.arange(np.prod(sizes)).astype(np.uint8) % 10)
    return [plain, {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in plain.items()}]


@cache
def cifar() -> list[Files]:
    plain = {
        member.path: bytes(range(10)) * (member.size // 10) + bytes(member.size % 10) for member in RECORDS
    }
    plain = {name: bytes(int(value) % 10 for value in data) for name, data in plain.items()}
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in plain.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return [plain, {"c.tar.gz": gzip.compress(file.getvalue(), mtime=0)}]


def read_idx(folder: Path, chance: Random) -> None:
    read_members(small_dataset("idx"), folder, None)


def read_cifar(folder: Path, chance: Random) -> None:
    read_members(small_dataset("cifar"), folder, None)


def mutate_gzip(data: bytes, chance: Random) -> bytes:
    return gzip.compress(mutate_bytes(gzip.decompress(data), chance), 1, mtime=0)


COUNTS = tinyimagenet.Counts(2, 2, 2)


@cache
def tiny_images() -> list[Files]:
    """The tree, the same as a zip file, and the arrays made from it."""
    file = io.BytesIO()
    Image.fromarray(draw(0, 8, 8, 3)).resize((64, 64)).save(file, "JPEG")
    wnids = ("n00000001", "n00000002")
    tree = {f"train/{one}/images/{one}_0.JPEG": file.getvalue() for one in wnids}
    tree |= {f"val/images/val_{number}.JPEG": file.getvalue() for number in range(2)}
    tree |= {"wnids.txt": "\n".join(wnids).encode()}
    lines = [f"val_{number}.JPEG\t{one}\t0\t0\t9\t9" for number, one in enumerate(wnids)]
    tree |= {"val/val_annotations.txt": "\n".join(lines).encode()}
    tree = {f"{tinyimagenet.TREE}/{name}": data for name, data in tree.items()}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as entries:
        for name, data in tree.items():
            entries.writestr(name, data)
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), tree)
        tinyimagenet.read(Path(folder), COUNTS)
        made = {
            name: data for name, data in files_in(Path(folder)).items() if name.startswith(tinyimagenet.CACHE)
        }
    return [tree, {f"{tinyimagenet.TREE}.zip": packed.getvalue()}, made]


def read_tiny_images(folder: Path, chance: Random) -> None:
    tinyimagenet.read(folder, COUNTS)
    tinyimagenet.check(folder, COUNTS)


# Settings and records


@cache
def recipes() -> list[Files]:
    folder = Path(config_of.__code__.co_filename).parent / "recipes"
    return [{path.name: path.read_bytes()} for path in sorted(folder.glob("*.toml"))]


def read_recipe(folder: Path, chance: Random) -> None:
    parse_recipe(content_of(folder).decode(errors="replace"), "mine.toml")


@cache
def settings() -> list[Files]:
    both = ["train.lr=0.1", "train.milestones=1,2", "net.width=8"]
    run = [*both, "train.epochs=2", "data.order=shuffled", "data.tasks=2", "method.alpha=0.5"]
    kept = [*both, "learner.memory=20MB", "learner.val=0.2", "learner.store=jpeg", "learner.classes=a,b"]
    return [{"run.txt": "\n".join(run).encode()}, {"learn.txt": "\n".join(kept).encode()}]


def read_settings(folder: Path, chance: Random) -> None:
    given: dict[str, Any] = parse_settings(content_of(folder).decode(errors="replace").split("\n"))
    if chance.random() < 0.3 and given:
        given[chance.choice(list(given))] = any_value(chance)
    if (folder / "run.txt").exists():
        resolve("split-digits", "ser", 50, 0, given)
    else:
        make_settings(given)


@cache
def small_config(method: str = "ser") -> RunConfig:
    given = {"net.width": 4, "train.epochs": 1, "train.batch_size": 64, "data.tasks": 3}
    return resolve("split-digits", method, 10, 0, given)


@cache
def configs() -> list[Files]:
    return [{"x.json": json.dumps(small_config(name).to_dict()).encode()} for name in ("ser", "derpp")]


def read_config(folder: Path, chance: Random) -> None:
    try:
        held = json.loads(content_of(folder))
    except (ValueError, RecursionError):  # a number of thousands of digits is a ValueError too
        return
    config_of(held, "")


@cache
def records() -> list[Files]:
    with tempfile.TemporaryDirectory() as folder:
        run(small_config(), out=Path(folder), write=True)
        (data,) = files_in(Path(folder)).values()
    return [{"seed-0.json": data}]


def read_records(folder: Path, chance: Random) -> None:
    found, _ = read_folder([folder])
    groups = group_records(found)
    if groups:
        make_comparison_table(groups)
    for record, group in zip(found, groups, strict=True):
        record.to_json(), repr(record)
        for scenario in record.scenarios:
            curves_of(group, scenario)


# States


@cache
def states() -> list[Files]:
    """Two checkpoints of a run of two methods, in their second task."""
    found = []
    for method in ("ser", "derpp"):
        with tempfile.TemporaryDirectory() as folder:
            with contextlib.suppress(SerError):
                run(small_config(method), out=Path(folder), listeners=[StopAfter(7)])
            found.append(files_in(next(Path(folder).rglob("*.state"))))
    return [{name: data for name, data in one.items() if name.startswith("state-")} for one in found]


def seal_state(before: Files, after: Files) -> Files:
    """Right sizes and checksums in the manifest."""
    (name,) = (name for name in before if name.endswith(MANIFEST))
    try:
        manifest = json.loads(after[name])
        for key in (TENSORS, TREE):
            data = after[name.replace(MANIFEST, key)]
            manifest["files"][key] |= {"bytes": len(data), "sha256": files.sha256(data)}
        manifest["sum"] = files.manifest_sum(manifest)
        return after | {name: json.dumps(manifest).encode()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return after


@cache
def trainer_of(method: str) -> StreamTrainer:
    return StreamTrainer(small_config(method), None, CPU)


def read_state(folder: Path, chance: Random) -> None:
    grid_of(folder, lambda text: None)
    for path in checkpoints(folder):
        with contextlib.suppress(SerError):
            read_stopped(path)
    continue_from(trainer_of(chance.choice(("ser", "derpp"))), folder)


def resume_state(folder: Path, chance: Random) -> None:
    """Resume, and train until the end of the task."""
    trainer = StreamTrainer(small_config(chance.choice(("ser", "derpp"))), None, CPU, [StopAfter(6)])
    continue_from(trainer, folder)
    with contextlib.suppress(Interrupted):
        trainer.go()


# Kept models


@cache
def models() -> list[Files]:
    """Models of two versions and a candidate, with raw, PNG and JPEG samples."""
    found, chance = [], np.random.default_rng(0)
    for store in ("raw", "png", "jpeg"):
        with tempfile.TemporaryDirectory() as folder:
            given: dict[str, Any] = {
                "net.name": "mlp",
                "net.width": 4,
                "train.epochs": 1,
                "learner.memory": 12,
            }
            for number, drop in enumerate((10.0, 1000.0, -1000.0)):
                images = chance.integers(0, 256, (12, 6, 6), np.uint8)
                data = (images, ["a", "b" if number < 2 else "c"] * 6)
                kept = {"learner.store": store, "learner.val": 0.3, "learner.memory": 12}
                how = given | kept if not number else {}
                learn(Path(folder, "model"), LearnRequest(data, settings=how, max_drop=drop), CPU)
            held = files_in(Path(folder, "model"))
            found.append({name: data for name, data in held.items() if not name.startswith("lock")})
    return found


def mutate_lines(data: bytes, chance: Random) -> bytes:
    """A history with one changed line, signed again."""
    lines = [line for line in data.split(b"\n") if line] or [b"{}"]
    number = chance.randrange(len(lines))
    lines[number] = mutate_signed(lines[number], chance)
    return b"\n".join(lines) + b"\n"


def mutate_signed(data: bytes, chance: Random) -> bytes:
    content = mutate_tree(json.loads(data), chance)
    return sign(content) if isinstance(content, dict) else json.dumps(content).encode()


def sign(content: dict[str, Any]) -> bytes:
    return signed({key: value for key, value in content.items() if key != "sum"})


def seal_model(before: Files, after: Files) -> Files:
    """A changed object gets the name of its content, in all manifests too."""
    changed = [
        name
        for name in before
        if name.startswith("objects/") and after.get(name, before[name]) != before[name]
    ]
    for name in changed:
        data = after.pop(name)
        old, new = Path(name).stem, files.sha256(data)
        after[name.replace(old, new)] = data
        for other in [other for other in after if other.endswith(".json")]:
            manifest = json.loads(after[other])
            for entry in manifest.get("parts", {}).values():
                if entry["object"] == old:
                    entry |= {"object": new, "bytes": len(data)}
            after[other] = sign(manifest)
    return after


def read_model(folder: Path, chance: Random) -> None:
    store = Store(folder)
    acts: list[Callable[[], object]] = [
        lambda: store.versions(),
        lambda: store.verify(),
        lambda: read_history(store),
        lambda: read_status(store),
        lambda: all_images(read_parts(store, None)[1]),
        lambda: answer(store, None),
        lambda: answer(store, "candidate"),
        lambda: store.next_number(),
    ]
    for act in acts:
        with contextlib.suppress(SerError):
            act()


def answer(store: Store, name: str | None) -> None:
    model = model_of(store.read(name)[1], CPU)
    model.answers(torch.zeros((2, *model.shape), dtype=torch.uint8))


def update_model(folder: Path, chance: Random) -> None:
    """Acts that write: an update and a rollback."""
    data = (draw(7, 6, 6, 6), ["a", "b"] * 3)
    with contextlib.suppress(SerError):
        learn(folder, LearnRequest(data, settings={"train.epochs": 1}, max_drop=1000.0, keep=1), CPU)
    with Store(folder).locked():
        Store(folder).rollback("v1", {"act": "rollback"})


def read_samples(folder: Path, chance: Random) -> None:
    codec.decode([content_of(folder)], chance.choice(((1, 9, 7), (3, 9, 7))))


def write_files(folder: Path, contents: Files) -> None:
    for name, data in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


TREES: dict[str, Mutator] = {"json": mutate_json, "zip": mutate_zip}
PICTURES: dict[str, Mutator] = {"png": mutate_png}
STATE: dict[str, Mutator] = {"json": mutate_json, "safetensors": mutate_tensors}
MODEL: dict[str, Mutator] = {"json": mutate_signed, "jsonl": mutate_lines, "safetensors": mutate_tensors}


@cache
def vit_weights() -> list[Files]:
    body = build_net("vit", (1, 8, 8), 2, torch.Generator(), width=8, depth=1).body
    return [{"vit.safetensors": save(body.state_dict())}]


def read_vit(folder: Path, chance: Random) -> object:
    file = folder / "vit.safetensors"
    return build_net("vit", (1, 8, 8), 2, torch.Generator(), weights=str(file))


READERS: dict[str, Reader] = {
    reader.name: reader
    for reader in (
        Reader("images", images, read_one_image, PICTURES, weight=40),
        Reader("stored samples", images, read_samples, PICTURES, weight=20),
        Reader("photos", photos, read_photos, PICTURES, weight=10),
        Reader("tables", tables, read_photos, {"json": mutate_json}, weight=2),
        Reader("npy", arrays, read_arrays, {}, weight=5),
        Reader("npz", archives, read_archives, {"npz": mutate_zip}, weight=5),
        Reader("kept arrays", lambda: arrays() + archives(), read_kept_arrays, {}, weight=2),
        Reader("idx", idx, read_idx, {"gz": mutate_gzip}, weight=8),
        Reader("cifar", cifar, read_cifar, {"gz": mutate_gzip}, weight=8),
        Reader("tinyimagenet", tiny_images, read_tiny_images, TREES, weight=2),
        Reader("recipes", recipes, read_recipe, {}, weight=20),
        Reader("settings", settings, read_settings, {}, weight=8),
        Reader("configurations", configs, read_config, {"json": mutate_json}, weight=8),
        Reader("records", records, read_records, {"json": mutate_json}, weight=10),
        Reader("states", states, read_state, STATE, seal_state, weight=4),
        Reader("resumed runs", states, resume_state, STATE, seal_state),
        Reader("weights of a ViT", vit_weights, read_vit, {"safetensors": mutate_tensors}, weight=4),
        Reader("kept models", models, read_model, MODEL, seal_model, weight=1),
        Reader("updates", models, update_model, MODEL, seal_model),
    )
}  # fmt: skip


def in_turn() -> Iterator[str]:
    """The names of the readers, each as often as its weight says, for ever."""
    while True:
        for name, reader in READERS.items():
            yield from [name] * reader.weight
