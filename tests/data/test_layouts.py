"""Data as users have them: split folders, lists of many kinds, tables, other formats, broken files."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.contents import write

from strongreplay.data.layouts import choose_test_data, split_data
from strongreplay.data.read_options import MOST_NAMED, ReadOptions
from strongreplay.data.tables import TableFiles
from strongreplay.data.user_data import read_chunk
from strongreplay.errors import ConfigError, DataError

NOISE = np.random.default_rng(0).integers(0, 256, (12, 6, 6, 3), np.uint8)


def png(number: int) -> bytes:
    packed = io.BytesIO()
    Image.fromarray(NOISE[number]).save(packed, "PNG")
    return packed.getvalue()


def noted(notes: list[str], **how: bool) -> ReadOptions:
    return ReadOptions(tell=notes.append, **how)


def test_of_a_split_folder_train_is_learnt_and_val_guards(tmp_path: Path) -> None:
    files = {f"{part}/{label}/1.png": png(0) for part in ("train", "valid", "test") for label in "ab"}
    parts = split_data(write(tmp_path, files))
    assert (parts.train, parts.val) == (tmp_path / "train", tmp_path / "valid")
    assert (
        "the part train is learnt; val is the guard set and is never learnt; test is left" in parts.notes[0]
    )
    assert read_chunk(parts.train).sources == ("a/1.png", "b/1.png")
    with pytest.raises(DataError, match=r"has the parts .*; give one of them, such as .*/"):
        read_chunk(tmp_path)


@pytest.mark.parametrize("third", ["", "plane/1.png"])
def test_classes_called_train_and_test_are_classes(tmp_path: Path, third: str) -> None:
    inner = "" if not third else "x/"  # beside another class, train/ is no part whatever it holds
    files = {"train/1.png": png(0), "test/1.png": png(1)} | ({third: png(2)} if third else {})
    assert split_data(write(tmp_path, {**files, f"train/{inner}2.png": png(3)})).notes == ()
    assert set(read_chunk(tmp_path).labels) == {"train", "test"} | ({"plane"} if third else set())


HEADERS = (
    "path,label",
    "file,class",
    "filename,category",
    "file_name,target",
    "Image , Label",
    "img,species",
    "img_path,Labels",
    "photo,class_label",
    "FilePath,ClassId",
    "Image-Path,fine_label",
)


@pytest.mark.parametrize("sign", [";", "\t"])
def test_columns_may_be_split_by_semicolons_and_tabs(tmp_path: Path, sign: str) -> None:
    lines = [["id", "path", "label"], ["1", "a.png", "red, dark"], ["2", "b.png", "blue"]]
    text = "\n".join(sign.join(line) for line in lines)
    write(tmp_path, {"a.png": png(0), "b.png": png(1), "list.csv": text, "metadata.csv": text})
    for source in (tmp_path / "list.csv", tmp_path):
        assert read_chunk(source).labels == ("red, dark", "blue")


@pytest.mark.parametrize("header", HEADERS)
def test_columns_have_the_names_that_people_use(tmp_path: Path, header: str) -> None:
    path, label = header.split(",")
    text = f"id,{label},when,{path}\n7,cat,May,b.png\n8,dog,June,a.png\n"
    write(tmp_path, {"a.png": png(0), "b.png": png(1), "list.csv": text})
    notes: list[str] = []
    chunk = read_chunk(tmp_path / "list.csv", options=noted(notes))
    assert (chunk.labels, chunk.sources) == (("cat", "dog"), ("b.png", "a.png"))
    assert [note.partition("; ")[2] for note in notes] == ["ignored: id, when"]


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])
def test_metadata_of_a_folder_have_the_labels(tmp_path: Path, name: str) -> None:
    rows = [
        {"file_name": "deep/a.png", "label": "cat", "x": 1},
        {"file_name": "b.png", "label": "dog", "x": 2},
    ]
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    text = "\n".join(lines if name.endswith("csv") else map(json.dumps, rows))
    write(tmp_path, {"deep/a.png": png(0), "b.png": png(1), name: text})
    chunk = read_chunk(tmp_path)
    assert (chunk.labels, chunk.sources) == (("cat", "dog"), ("deep/a.png", "b.png"))
    folders = write(
        tmp_path / "other", {"cat/1.png": png(0), "metadata.csv": "file_name,text\ncat/1.png,x\n"}
    )
    notes: list[str] = []
    assert read_chunk(folders, options=noted(notes)).labels == ("cat",)
    assert "has no column of labels; classes are the names of the folders" in notes[0]


@pytest.mark.parametrize("line", ["[1]", "{", '{"file_name": "a.png"}', '{"file_name": 3, "label": "x"}'])
def test_bad_lines_of_json_are_told(tmp_path: Path, line: str) -> None:
    good = '{"file_name": "a.png", "label": 3}'
    write(tmp_path, {"a.png": png(0), "list.jsonl": f"{good}\n\n{line}\n"})
    with pytest.raises(DataError, match=r"list.jsonl"):
        read_chunk(tmp_path / "list.jsonl")
    write(tmp_path, {"list.jsonl": good})
    assert read_chunk(tmp_path / "list.jsonl").labels == (3,)


def test_files_outside_are_read_if_it_is_allowed(tmp_path: Path) -> None:
    away = write(tmp_path / "away", {"1.png": png(0)})
    root = write(tmp_path / "root", {"b/1.png": png(1), "list.csv": f"path,label\n{away}/1.png,x\n"})
    (root / "a").symlink_to(away)
    for source in (root, root / "list.csv"):
        with pytest.raises(DataError, match=r"must stay inside .* or allow it with --allow-outside$"):
            read_chunk(source, options=ReadOptions(skip_bad=True))  # skipping does not mean this
        with pytest.raises(DataError, match=r"copy the file into the folder$"):
            read_chunk(source)  # by a command without these options
    allowed = ReadOptions(allow_outside=True)
    assert read_chunk(root, options=allowed).sources == ("a/1.png", "b/1.png")
    assert read_chunk(root / "list.csv", options=allowed).sources == (f"{away.resolve()}/1.png",)


def test_all_bad_files_are_named_at_once_or_skipped(tmp_path: Path) -> None:
    bad = {f"a/bad{number}.png": b"no image" for number in range(3)} | {"a/cut.png": png(2)[:-40]}
    write(tmp_path, {**bad, "a/good.png": png(0), "b/good.png": png(1)})
    with pytest.raises(DataError, match=r"replace them or take them out$"):
        read_chunk(tmp_path)  # by a command without --skip-bad
    with pytest.raises(DataError) as caught:
        read_chunk(tmp_path, options=ReadOptions())
    text = str(caught.value)
    assert ": 4 files cannot be read:\n" in text
    assert all(f"bad{number}.png is not an image" in text for number in range(3))
    assert "a/cut.png is damaged" in text
    assert text.endswith("go on without them: --skip-bad")
    notes: list[str] = []
    chunk = read_chunk(tmp_path, options=noted(notes, skip_bad=True))
    assert chunk.sources == ("a/good.png", "b/good.png")
    np.testing.assert_array_equal(chunk.inputs.movedim(1, -1), NOISE[:2])
    (note,) = notes
    assert "4 of 6 files skipped" in note
    assert "a/cut.png is damaged" in note
    assert note.count("\n") == 4
    for path in tmp_path.glob("*/good.png"):
        path.write_bytes(b"")
    (tmp_path / "a" / "cut.png").unlink()
    with pytest.raises(DataError, match="5 files cannot be read"):
        read_chunk(tmp_path, options=ReadOptions(skip_bad=True))  # nothing is left


def test_a_message_about_many_files_is_bounded(tmp_path: Path) -> None:
    rows = "".join(f"{number}.png,x\n" for number in range(MOST_NAMED + 9))
    write(tmp_path, {"a.png": png(0), "list.csv": f"path,label\na.png,x\n{rows}"})
    with pytest.raises(DataError, match=rf"{MOST_NAMED + 9} files cannot be read(.|\n)*\n  and 9 more\n"):
        read_chunk(tmp_path / "list.csv")
    assert len(read_chunk(tmp_path / "list.csv", options=ReadOptions(skip_bad=True))) == 1


def test_tiff_and_the_first_frame_of_gif(tmp_path: Path) -> None:
    frames = [Image.fromarray(NOISE[number, :, :, 0]) for number in (0, 1)]
    (tmp_path / "a").mkdir()
    frames[0].save(tmp_path / "a" / "1.gif", save_all=True, append_images=frames[1:])
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        frames[0].save(tmp_path / "a" / f"{orientation}.tif", exif=exif, compression="tiff_lzw")
        frames[0].save(tmp_path / "a" / f"{orientation}.png", exif=exif)
    Image.fromarray(NOISE[0, :, :, 0].astype(np.uint16) * 256 + 7).save(tmp_path / "a" / "wide.tiff")
    chunk = read_chunk(tmp_path)
    named = dict(zip(chunk.sources, chunk.inputs, strict=True))
    assert torch.equal(named["a/1.gif"][0], torch.from_numpy(NOISE[0, :, :, 0]))
    assert torch.equal(named["a/wide.tiff"][0], named["a/1.png"][0])
    for orientation in range(1, 9):
        assert torch.equal(named[f"a/{orientation}.tif"], named[f"a/{orientation}.png"]), orientation
    Image.fromarray(NOISE[0, :, :, 0].astype(np.float32)).save(tmp_path / "a" / "float.tif")
    with pytest.raises(DataError, match=r"float.tif has pixels of floating point"):
        read_chunk(tmp_path)


def test_letters_with_accents_have_one_form(tmp_path: Path) -> None:
    write(tmp_path, {"list.csv": "path,label\na.png,caf\u00e9\na.png,cafe\u0301\n", "a.png": png(0)})
    assert read_chunk(tmp_path / "list.csv").labels == ("caf\u00e9",) * 2
    write(tmp_path / "photos", {"cafe\u0301/1.png": png(0)})
    assert read_chunk(tmp_path / "photos").labels == ("caf\u00e9",)
    assert read_chunk(NOISE[:1], ["cafe\u0301"]).labels == ("caf\u00e9",)


# Tables


def table(start: int, stop: int, names: bool = True) -> Any:
    """As `datasets` makes it: a struct of bytes and path, and numbers with names in the metadata."""
    pyarrow = pytest.importorskip("pyarrow")

    image = [{"bytes": png(number), "path": f"{number}.png"} for number in range(start, stop)]
    columns = {
        "image": image,
        "label": [number % 2 for number in range(start, stop)],
        "id": [*range(start, stop)],
    }
    made = pyarrow.table(columns)
    features = {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}, "image": {"_type": "Image"}}
    text = json.dumps({"info": {"features": features}})
    return made.replace_schema_metadata({"huggingface": text}) if names else made


def save_to_disk(folder: Path, made: Any) -> None:
    """The files that `Dataset.save_to_disk` writes."""
    pyarrow = pytest.importorskip("pyarrow")

    folder.mkdir(parents=True)
    path = str(folder / "data-00000-of-00001.arrow")
    with pyarrow.OSFile(path, "wb") as file, pyarrow.ipc.new_stream(file, made.schema) as writer:
        writer.write_table(made, max_chunksize=2)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": folder.name}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def test_parquet_and_saved_datasets_are_read(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for name, rows in (("train-00000-of-00002", (0, 5)), ("train-00001-of-00002", (5, 8)), ("test", (8, 12))):
        parquet.write_table(table(*rows), tmp_path / "hub" / "data" / f"{name}.parquet")
    save_to_disk(tmp_path / "saved" / "train", table(0, 8))
    save_to_disk(tmp_path / "saved" / "validation", table(8, 12))
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    notes: list[str] = []
    for name in ("hub", "saved"):
        parts = split_data(tmp_path / name)
        chunk = read_chunk(parts.train, options=noted(notes))
        assert chunk.labels == ("cat", "dog") * 4
        np.testing.assert_array_equal(chunk.inputs.movedim(1, -1), NOISE[:8])
        assert chunk.sources[5].endswith("-of-00002.parquet#0" if name == "hub" else ".arrow#5")
        assert (parts.val is None) == (name == "hub")
        tested, note = choose_test_data(tmp_path / name)
        assert read_chunk(tested).labels == ("cat", "dog") * 2
        assert note == f"{tmp_path / name} has the parts " + {
            "hub": "test, train; test is evaluated", "saved": "train, val; val is evaluated"
        }[name]  # fmt: skip
    with pytest.raises(DataError, match=r"give one of them, such as .*train-00000-of-00002.parquet$"):
        read_chunk(tmp_path / "hub")
    assert [note.partition("; ")[2] for note in notes] == ["ignored: id"] * 2
    renamed = tmp_path / "renamed.parquet"
    parquet.write_table(table(0, 3, names=False).rename_columns(["jpg", "cls", "id"]), renamed)
    assert read_chunk(renamed).labels == (0, 1, 0)
    one = tmp_path / "one.parquet"
    parquet.write_table(table(0, 3, names=False), one)
    assert read_chunk(one).labels == (0, 1, 0)
    save_to_disk(tmp_path / "alone", table(0, 3))
    assert read_chunk(tmp_path / "alone").labels == ("cat", "dog", "cat")


def test_hostile_tables_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")

    from strongreplay.data import tables

    path = tmp_path / "x.parquet"
    parquet.write_table(table(0, 4), path)
    whole = path.read_bytes()
    for content, message in (
        (b"", "damaged"),
        (whole[:-9], "damaged"),
        (whole[:99] + bytes(99) + whole[198:], ""),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"x.parquet.*{message}"):
            read_chunk(path)
    rows = {"image": [png(0), b"no image", None], "label": ["a", "b", "c"]}
    parquet.write_table(pyarrow.table(rows), path)
    with pytest.raises(
        DataError, match=r"2 files .*\n.* #1 is not an image(.|\n)* #2 has no bytes of an image"
    ):
        read_chunk(path)
    assert read_chunk(path, options=ReadOptions(skip_bad=True)).labels == ("a",)
    parquet.write_table(pyarrow.table(rows).slice(0, 0), path)
    with pytest.raises(DataError, match=r"has no rows; give"):
        read_chunk(path)
    parquet.write_table(pyarrow.table({"image": ["a.png"], "label": ["a"]}), path)
    with pytest.raises(DataError, match=r"must have a column of encoded images, got 'image, label'"):
        read_chunk(path)
    parquet.write_table(pyarrow.table({"image": [b"\0" * 1000] * 3000, "label": [1] * 3000}), path)
    labels_of = tables._labels
    for count in (2999, 3001):  # as in a damaged file
        monkeypatch.setattr(tables, "_labels", lambda *given, count=count: [*labels_of(*given), 1][:count])
        with pytest.raises(DataError, match=f"must have as many images as labels, which are {count:,}"):
            list(tables.list_table(TableFiles(path, (path,)), ReadOptions())[2]())
    monkeypatch.setattr(tables, "_labels", labels_of)
    monkeypatch.setattr(tables, "GROUP_LIMIT", 500)
    with pytest.raises(DataError, match=r"unpacks to [\d,]+ bytes a row group, expected at most 500"):
        read_chunk(path)
    save_to_disk(tmp_path / "saved", table(0, 3))
    (tmp_path / "saved" / "state.json").write_text('{"_data_files": [{"filename": "../x.parquet"}]}')
    with pytest.raises(DataError, match=r"state.json must name files beside it"):
        read_chunk(tmp_path / "saved")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"run: pip install 'strongreplay\[tables\]'"):
        read_chunk(TableFiles(path, (path,)))
