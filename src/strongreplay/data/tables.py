"""Images inside Parquet and Arrow files, as `datasets` of Hugging Face writes them; read by pyarrow alone.

Files are not trusted: sizes are checked before anything is unpacked, and buffers of Arrow are validated.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strongreplay.data import images
from strongreplay.data.archives import BROKEN, Damaged, telling
from strongreplay.data.labels import Label, name_numbers, read_label
from strongreplay.data.manifests import choose_label
from strongreplay.data.read_options import ReadOptions
from strongreplay.errors import ConfigError, DataError
from strongreplay.storage.files import parse_json

if TYPE_CHECKING:
    from PIL import Image

IMAGES = ("image", "img", "picture", "photo", "jpg", "png", "bytes")  # columns of encoded images
GROUP_LIMIT = 1 << 31  # bytes of a row group, unpacked
MOST_ROWS = 1 << 24
BATCH_SIZE = 8  # rows unpacked at once: a hostile file may hold one large value many times
ENDINGS = (".parquet", ".arrow")
SPLIT = re.compile(r"(.+?)(-\d+-of-\d+)?\Z")  # train-00000-of-00004
REMEDY = "give Parquet or Arrow files with encoded images and labels"


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of one part of a dataset, in order."""

    source: Path
    files: tuple[Path, ...]

    def __str__(self) -> str:
        return str(self.source)


def is_table(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS


def find_tables(folder: Path) -> dict[str, TableFiles]:
    """The tables of a folder by the name of their split: saved datasets, or Parquet files, also in data/."""
    saved = [path for path in (folder, *_folders(folder)) if (path / "state.json").is_file()]
    if saved:
        return {path.name: TableFiles(path, _saved_files(path)) for path in saved}
    grouped: dict[str, list[Path]] = {}
    for path in sorted([*folder.glob("*.parquet"), *folder.glob("data/*.parquet")]):
        found = SPLIT.match(path.stem)
        grouped.setdefault(found[1] if found else path.stem, []).append(path)
    return {name: TableFiles(folder, tuple(paths)) for name, paths in grouped.items()}


def list_table(
    table: TableFiles, options: ReadOptions
) -> tuple[list[str], list[Label], Callable[[], Iterator[AbstractContextManager["Image.Image"]]]]:
    """Name and label of each row, and a function that opens the images in this order."""
    names: list[str] = []
    labels: list[Label] = []
    used: list[tuple[Path, str, int]] = []
    for path in table.files:
        with _reading(path):
            schema = _read_schema(path)
            image, label = _choose_image(path, schema), choose_label(path, schema.names, IMAGES, options)
            own = [read_label(value, f"{path} #{row}") for row, value in enumerate(_labels(path, label))]
            labels += name_numbers(own, _class_names(schema, label), str(path))
            names += [f"{path.name}#{row}" for row in range(len(own))]
            used.append((path, image, len(own)))
        options = ReadOptions(
            options.allow_outside, options.skip_bad, are_offered=options.are_offered
        )  # one message is enough: all files should have the columns of the first
    if not labels:
        raise DataError(f"{table} has no rows; {REMEDY}")

    def open_all() -> Iterator[AbstractContextManager["Image.Image"]]:
        for path, column, count in used:
            with _reading(path):
                row = -1
                for row, content in enumerate(_values(path, column)):
                    if row == count:
                        break
                    yield images.opened_bytes(f"{path} #{row}", content)
                if row + 1 != count:
                    raise Damaged(path, f"must have as many images as labels, which are {count:,}")

    return names, labels, open_all


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _saved_files(folder: Path) -> tuple[Path, ...]:
    """The Arrow files that state.json of a saved dataset names; they lie beside it."""
    state = folder / "state.json"
    with telling(state, "save the dataset again"):
        if state.stat().st_size > 1 << 24:
            raise Damaged(state, "must be a small JSON file")
        content = parse_json(state.read_bytes())
        names = [entry["filename"] for entry in content["_data_files"]]
        if not names or any(not isinstance(name, str) or Path(name).name != name for name in names):
            raise Damaged(state, f"must name files beside it, got {str(names)[:80]}")
    return tuple(folder / name for name in names)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors of pyarrow into a DataError that names the file."""
    try:
        import pyarrow  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigError(
            f"{path}: tables of images need pyarrow; run: pip install 'strongreplay[tables]'"
        ) from None
    with telling(path, REMEDY):
        if not path.is_file():
            raise Damaged(path, "is missing or no regular file")
        try:
            yield
        except (MemoryError, pyarrow.ArrowException) as error:
            if isinstance(error, BROKEN):
                raise
            raise Damaged(path, f"is damaged ({type(error).__name__}: {str(error)[:200]})") from error


def _read_schema(path: Path) -> Any:
    if path.suffix.lower() == ".parquet":
        return _open_parquet(path).schema_arrow
    with _open_arrow(path) as reader:
        return reader.schema


def _open_parquet(path: Path) -> Any:
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    about = file.metadata
    if about.num_rows > MOST_ROWS:
        raise Damaged(path, f"has {about.num_rows:,} rows, expected at most {MOST_ROWS:,}")
    # Not the sizes of columns: a damaged one ends the process inside of pyarrow.
    largest = max(
        (about.row_group(group).total_byte_size for group in range(about.num_row_groups)), default=0
    )
    if largest > GROUP_LIMIT:
        raise Damaged(path, f"unpacks to {largest:,} bytes a row group, expected at most {GROUP_LIMIT:,}")
    return file


@contextmanager
def _open_arrow(path: Path) -> Iterator[Any]:
    """A stream, which is what `datasets` writes, or a file of Arrow; read, not mapped: it may shrink."""
    import pyarrow
    import pyarrow.ipc  # type: ignore[import-untyped]

    with pyarrow.OSFile(str(path)) as file:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        yield pyarrow.ipc.open_file(file) if is_file else pyarrow.ipc.open_stream(file)


def _columns(path: Path, name: str) -> Iterator[Any]:
    """One column, some rows at a time."""
    if path.suffix.lower() == ".parquet":
        for batch in _open_parquet(path).iter_batches(BATCH_SIZE, columns=[name], use_threads=False):
            yield batch.column(0)
        return
    with _open_arrow(path) as reader:
        count = getattr(reader, "num_record_batches", None)
        batches = reader if count is None else map(reader.get_batch, range(count))
        for batch in batches:
            column = batch.column(batch.schema.get_field_index(name))
            column.validate(full=True)
            yield column


def _labels(path: Path, name: str) -> list[Any]:
    found: list[Any] = []
    for column in _columns(path, name):
        found += column.to_pylist()
        if len(found) > MOST_ROWS:
            raise Damaged(path, f"has more than {MOST_ROWS:,} rows")
    return found


def _values(path: Path, name: str) -> Iterator[bytes | None]:
    """The bytes of each image; a struct has them in its field `bytes`."""
    import pyarrow
    import pyarrow.compute  # type: ignore[import-untyped]  # not loaded with pyarrow itself

    for column in _columns(path, name):
        if pyarrow.types.is_struct(column.type):
            column = pyarrow.compute.struct_field(column, "bytes")
        for value in column:
            yield value.as_py()


def _choose_image(path: Path, schema: Any) -> str:
    """The column of encoded images: bytes, or a struct with a field of bytes."""
    from pyarrow import types

    def is_encoded(kind: Any) -> bool:
        if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            kind = kind.field("bytes").type
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    encoded = [field.name for field in schema if is_encoded(field.type)]
    if not encoded:
        raise Damaged(path, f"must have a column of encoded images, got {', '.join(schema.names)[:80]!a}")
    return next((name for name in IMAGES if name in encoded), encoded[0])


def _class_names(schema: Any, label: str) -> Sequence[str] | None:
    """The names of the classes that `datasets` keeps in the metadata of a schema."""
    text = (schema.metadata or {}).get(b"huggingface", b"")
    try:
        names = json.loads(text)["info"]["features"][label]["names"]
    except (*BROKEN, RecursionError):
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def expect_one(folder: Path, tables: dict[str, TableFiles]) -> TableFiles:
    if len(tables) == 1:
        return next(iter(tables.values()))
    raise DataError(f"{folder} has the parts {', '.join(tables)}; one of them must be called train")
