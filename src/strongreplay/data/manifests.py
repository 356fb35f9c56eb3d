"""Lists of images with labels: CSV or JSON lines, with the column names that people use.

`metadata.csv` and `metadata.jsonl` in a folder are such lists. Paths are relative to the list.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from strongreplay.data.archives import Damaged, telling
from strongreplay.data.images import REPLACE
from strongreplay.data.labels import Label, check_name, read_label
from strongreplay.data.read_options import STRICT, Faults, OutsideFolderError, ReadOptions
from strongreplay.errors import DataError
from strongreplay.storage.files import parse_json

# Capitals, spaces, hyphens and underscores make no difference; the first that is there is used.
PATHS = ("path", "file_name", "file", "file_path", "image_path", "img_path", "image", "img", "photo")
LABELS = (
    "label", "class", "category", "target", "class_name", "label_name", "class_label", "species", "y",
    "labels", "fine_label", "cls", "class_id",
)  # fmt: skip
DELIMITERS = ",;\t"
JSON_ENDINGS = (".jsonl", ".ndjson")
METADATA = ("metadata.csv", "metadata.jsonl")
MANIFEST_LIMIT = 1 << 26  # bytes; about a million lines
REMEDY = "write UTF-8 lines under the header path,label"


class ImageEntry(NamedTuple):
    """One image to read: displayed name, label, and file with links resolved."""

    name: str
    label: Label
    file: Path


class Columns(NamedTuple):
    """The names of the two columns that are used."""

    path: str
    label: str


def find_metadata(folder: Path) -> Path | None:
    """The list of labels that belongs to the images of a folder."""
    return next((folder / name for name in METADATA if (folder / name).is_file()), None)


def has_labels(manifest: Path) -> bool:
    """Whether the first line of a list names or has a column of labels."""
    with telling(manifest, REMEDY), manifest.open("rb") as file:
        first = file.readline(MANIFEST_LIMIT).decode("utf-8-sig")
        is_json = manifest.suffix.lower() in JSON_ENDINGS
        names = parse_json(first) if is_json else next(csv.reader([first], delimiter=_delimiter(first)), [])
        return bool(_known(LABELS, map(str, names)))


def list_manifest(manifest: Path, options: ReadOptions = STRICT) -> list[ImageEntry]:
    """The images of a CSV file or of JSON lines, in their order."""
    with telling(manifest, REMEDY):
        if not manifest.is_file() or manifest.stat().st_size > MANIFEST_LIMIT:
            raise Damaged(manifest, f"must be a regular file of at most {MANIFEST_LIMIT:,} bytes")
        text = manifest.read_bytes().decode("utf-8-sig")
        is_json = manifest.suffix.lower() in JSON_ENDINGS
        lines = _json_lines(manifest, text) if is_json else _csv_lines(manifest, text)
        root, columns, items, faults = manifest.parent.resolve(), None, [], Faults(manifest, options)
        for number, row in lines:
            columns = columns or choose_columns(manifest, list(row), options)
            path, label = _cells(f"{manifest} line {number}", row, columns)
            with faults.collected():
                file = locate(manifest.parent / path, root, options)
                name = file.relative_to(root).as_posix() if file.is_relative_to(root) else str(file)
                items.append(ImageEntry(name, label, file))
        faults.settle(len(items))
        if not items:
            raise Damaged(manifest, "must name at least one image, got none")
    return items


def choose_columns(source: Path, names: Sequence[str], options: ReadOptions) -> Columns:
    """The columns of paths and labels; the others are ignored, with a message."""
    return Columns(choose_column(source, names, PATHS, "images"), choose_label(source, names, PATHS, options))


def choose_label(source: Path, names: Sequence[str], others: Sequence[str], options: ReadOptions) -> str:
    """The column of labels; a message names columns that are neither labels nor one of the `others`."""
    label = choose_column(source, names, LABELS, "labels")
    ignored = [name for name in names if name not in (label, *_known(others, names)[:1])]
    if ignored:
        shown = ", ".join(check_name(name, source) if name.strip() else "''" for name in ignored[:10])
        more = f" and {len(ignored) - 10} more" if len(ignored) > 10 else ""
        options.tell(f"{source}: labels are in column {label}; ignored: {shown}{more}")
    return label


def choose_column(source: Path, names: Sequence[str], known: Sequence[str], what: str) -> str:
    if found := _known(known, names):
        return found[0]
    raise Damaged(
        source,
        f"must begin with the header path,label, got {str(list(names))[:80]}; its {what} may also be called "
        f"{', '.join(known[1:])}",
    )


def locate(path: Path, root: Path, options: ReadOptions) -> Path:
    """The regular file of a path, with links resolved; inside the root, unless outside is allowed."""
    with telling(path, REPLACE):
        file = path.resolve()
        if not options.allow_outside and not file.is_relative_to(root):
            remedy = ", or allow it with --allow-outside" if options.are_offered else ""
            raise OutsideFolderError(
                f"{path} must stay inside {root}, got {file}; copy the file into the folder{remedy}"
            )
        if not file.is_file():  # reading a pipe could wait forever
            raise Damaged(path, "is missing or no regular file")
        return file


def _known(known: Sequence[str], names: Iterable[str]) -> list[str]:
    """Those of the names that are known, in the order of the known ones."""
    plain = [name.replace("_", "") for name in known]
    found = {re.sub(r"[\s_-]", "", name).lower(): name for name in reversed([*names])}
    return [found[name] for name in plain if name in found]


def _delimiter(header: str) -> str:
    """The sign that splits the header into the most known names."""

    def count(sign: str) -> int:
        return len(_known((*PATHS, *LABELS), [cell.strip('" ') for cell in header.split(sign)]))

    return max(DELIMITERS, key=count)


def _cells(where: str, row: Mapping[str, Any], columns: Columns) -> tuple[str, Label]:
    path, label = row.get(columns.path), row.get(columns.label)
    if not isinstance(path, str) or label is None:
        raise DataError(f"{where} must have a path and a label, got {str(dict(row))[:80]!a}; fix the line")
    # A space after the comma must not make another class.
    return check_name(path, where), read_label(label.strip() if isinstance(label, str) else label, where)


def _csv_lines(manifest: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    delimiter = _delimiter(text.partition("\n")[0])
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = next(rows, [])
        if len({*header}) < len(header) or not header:
            raise Damaged(manifest, f"must begin with the header path,label, got {str(header)[:80]}")
        choose_columns(manifest, header, STRICT)  # a wrong header is an error even if no line follows
        for row in rows:
            if row and len(row) != len(header):
                raise DataError(
                    f"{manifest} line {rows.line_num} must have a path and a label, got {len(row)} fields; "
                    f"fix the line, the header has {len(header)}"
                )
            if row:
                yield rows.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise Damaged(manifest, f"line {rows.line_num} is not CSV ({error})") from error


def _json_lines(manifest: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            row = parse_json(line)
            if not isinstance(row, dict):
                raise DataError(
                    f"{manifest} line {number} must be an object, got {line[:80]!a}; fix the line"
                )
            yield number, row
