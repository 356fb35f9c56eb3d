"""Hostile input and bad luck, as ser learn and its companions meet them: told in a line, nothing changed."""

import io
import os
import resource
import shutil
import signal
import struct
import sys
import zlib
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from support.commands import QUICK, Said, Ser, contents, ser, write_digits

from strongreplay.cli import main
from strongreplay.models.store import WORK, Store

__all__ = ["ser"]  # a fixture
CPU = ["--device", "cpu", "--threads", "1"]
SIDE = 12
Pixels = NDArray[np.uint8]


def draw(seed: int, *shape: int) -> Pixels:
    """An image that scaling leaves nearly as it is: dark and light quarters."""
    quarters = np.random.default_rng(seed).integers(0, 256, (2, 2, *shape[2:]), np.uint8)
    return quarters.repeat(shape[0] // 2, 0).repeat(shape[1] // 2, 1)


def save(path: Path, image: Image.Image, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def grey(seed: int) -> Image.Image:
    return Image.fromarray(draw(seed, SIDE, SIDE))


def bomb() -> bytes:
    """A PNG of 70 bytes that says it is 50,000 pixels wide and high."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", zlib.compress(b"")) + part(b"IEND", b"")
    )


def png(seed: int = 0) -> bytes:
    file = io.BytesIO()
    grey(seed).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_digits(folder / "may", [0, 1])
    write_digits(folder / "june", [3, 4])
    return folder


@pytest.fixture(scope="module")
def original(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "state"
    run_apart("learn", folder, "--data", photos / "may", *QUICK)
    assert Store(folder).current == "v1"
    return folder


@pytest.fixture
def state(original: Path, tmp_path: Path) -> Path:
    """A model of one version that a test may do anything to."""
    return Path(shutil.copytree(original, tmp_path / "state"))


def child(words: list[str], before: Callable[[], None] | None, pipe: Any) -> None:
    sys.argv, sys.stdout, sys.stderr = ["ser", *words], io.StringIO(), io.StringIO()
    if before:
        before()
    try:
        main()
    finally:
        pipe.send((sys.stdout.getvalue(), sys.stderr.getvalue()))  # a file could not grow on a full disk


def run_apart(*words: object, before: Callable[[], None] | None = None) -> Said:
    """The command in a process of its own, whose disk may be filled up."""
    context = get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=([*map(str, words)], before, theirs))
    process.start()
    theirs.close()
    out, err = ours.recv()
    process.join(60)
    return Said(process.exitcode or 0, out, err)


def told_in_a_line(said: Said, *pieces: str, code: int = 1) -> None:
    faults = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert (said.code, len(faults)) == (code, 1), said
    for piece in pieces:
        assert piece in faults[0]


# Bad files

BAD_FILES = [
    ("corrupt", lambda: png()[:60], "cut.png"),
    ("another kind", lambda: b"%PDF-1.4 " + bytes(200), "is not an image"),
    ("bomb", bomb, "needs too much memory, expected at most"),
    ("nothing", bytes, "is not an image"),
]


@pytest.mark.parametrize(("kind", "content", "message"), BAD_FILES, ids=[kind for kind, _, _ in BAD_FILES])
def test_one_bad_file_is_named_and_nothing_is_learnt(
    kind: str, content: Callable[[], bytes], message: str, ser: Ser, state: Path, photos: Path, tmp_path: Path
) -> None:
    good = save(tmp_path / "data" / "a" / "good.png", grey(0))
    bad = good.with_name("cut.png")
    bad.write_bytes(content())
    before = contents(state)
    told_in_a_line(ser("learn", state, "--data", tmp_path / "data", *CPU), str(bad), message, "; replace")
    told_in_a_line(ser("learn", state, "--data", tmp_path / "data", *CPU, "--json"), message)
    told_in_a_line(ser("evaluate", state, "--data", tmp_path / "data", *CPU), message)
    guarded = ser("learn", state, "--data", photos / "june", "--guard", tmp_path / "data", *CPU)
    told_in_a_line(guarded, message)
    answered = ser("predict", state, tmp_path / "data", *CPU)
    told_in_a_line(answered, message)
    assert [line.split("\t")[0] for line in answered.out.splitlines()] == [str(good)]
    assert contents(state) == before


# Images of every kind


def test_sizes_and_modes_may_be_mixed(ser: Ser, tmp_path: Path) -> None:
    data, state, colour = tmp_path / "data", tmp_path / "state", Image.fromarray(draw(1, 40, 60, 3))
    save(data / "a" / "rgba.png", Image.fromarray(draw(2, 30, 20, 4)))
    save(data / "a" / "palette.png", colour.quantize(8))
    save(data / "a" / "clear palette.png", colour.quantize(8), transparency=0)
    save(data / "b" / "grey.bmp", grey(3))
    save(data / "b" / "deep.png", Image.fromarray(draw(4, 24, 24).astype(np.uint16) * 257))
    save(data / "b" / "bits.png", grey(5).convert("1"))
    save(data / "b" / "photo.webp", colour)
    save(data / "b" / "ink.jpg", colour.convert("CMYK"))
    learnt = ser("learn", state, "--data", data, *QUICK)
    assert learnt.code == 0, learnt.err
    assert "v1 is in use: 2 classes, 2 new (a, b)" in learnt.out
    answered = ser("predict", state, data, *CPU)
    assert (answered.code, answered.err, len(answered.out.splitlines())) == (0, "", 8)


@pytest.mark.parametrize("orientation", range(2, 9))
def test_a_photo_that_its_camera_turned_is_learnt_as_the_upright_one(
    orientation: int, ser: Ser, tmp_path: Path
) -> None:
    """Equal pixels name equal chunks, so what was learnt upright is not learnt again turned."""
    upright = Image.fromarray(draw(7, 16, 24, 3))
    inverse = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # the values of Image.Transpose
    lying = upright.transpose(Image.Transpose(inverse[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    save(tmp_path / "upright" / "a" / "x.png", upright)
    save(tmp_path / "turned" / "a" / "x.png", lying, exif=exif)
    save(tmp_path / "lying" / "a" / "x.png", lying)
    state = tmp_path / "state"
    assert ser("learn", state, "--data", tmp_path / "upright", *QUICK, "--epochs", "1").code == 0
    assert "already learnt this" in ser("learn", state, "--data", tmp_path / "turned", *CPU).out
    probabilities = {
        name: ser("predict", state, tmp_path / name, *CPU, "--json").out.split('"label"')[1]
        for name in ("upright", "turned")
    }
    assert probabilities["upright"] == probabilities["turned"]
    assert "already learnt this" not in ser("learn", state, "--data", tmp_path / "lying", *CPU).out


# Very little, very much


def test_one_class_with_one_sample_is_a_model_that_grows(ser: Ser, tmp_path: Path, photos: Path) -> None:
    state = tmp_path / "state"
    only = save(tmp_path / "one" / "only" / "x.png", grey(0))
    first = ser("learn", state, "--data", tmp_path / "one", *QUICK)
    assert first.code == 0, first.err
    assert "read 1 sample of 1 class, 1 of them new (only)" in first.err
    assert first.out.splitlines()[-1].startswith(
        "v1 is in use: 1 class, 1 new (only), 1 sample learnt, 0 held"
    )
    assert ser("predict", state, only, "--top", "3", *CPU).out == f"{only}\tonly\t1.0000\n"
    assert "1 class\n" in ser("status", state).out
    assert "v1: 1 of 1 right" in ser("evaluate", state, "--data", tmp_path / "one", *CPU).out
    grown = ser("learn", state, "--data", photos / "may", *CPU)
    assert grown.code == 0, grown.err
    assert any(line.startswith("v2 is in use: 3 classes, 2 new") for line in grown.out.splitlines())


@pytest.mark.slow
def test_thousands_of_classes_are_learnt_and_told_in_short(ser: Ser, tmp_path: Path) -> None:
    state, number = tmp_path / "state", 3000
    labels = np.array([f"class {place}" for place in range(number)])
    for name, rows in (("may", number), ("june", 200)):
        inputs = np.random.default_rng(rows).random((rows, 8), np.float32)
        np.savez(tmp_path / f"{name}.npz", inputs=inputs, labels=labels[:rows])
    words = ["--set", "net.width=8", "--batch-size", "1000", "--epochs", "1", "--memory", "20"]
    first = ser("learn", state, "--data", tmp_path / "may.npz", *QUICK, *words)
    assert first.code == 0, first.err
    assert "3000 new (class 0, class 1, class 10, class 100, class 1000 and 2995 more)" in first.out
    second = ser("learn", state, "--data", tmp_path / "june.npz", "--guard", tmp_path / "may.npz", *CPU)
    assert second.code in (0, 3), second.err
    status, history = ser("status", state), ser("history", state)
    judged = ser("evaluate", state, "--data", tmp_path / "may.npz", "--against", "none", *CPU)
    for said in (first, second, status, history, judged):
        assert said.code in (0, 3)
        assert len(said.out.splitlines()) < 60
    unknown = ser("memory", state, "list", "--label", "?")
    told_in_a_line(unknown, "unknown label of a remembered sample '?'", code=2)
    assert all(path.stat().st_size < 2_000_000 for path in (state / "versions").iterdir())


def test_all_of_many_classes_are_shown_if_asked_for(ser: Ser, tmp_path: Path) -> None:
    """Each row looks once at what fell, not at all classes again."""
    state, number = tmp_path / "state", 500
    labels = np.arange(number).repeat(2)
    np.savez(tmp_path / "x.npz", inputs=np.random.default_rng(0).random((2 * number, 4)), labels=labels)
    words = ["--data", tmp_path / "x.npz", "--guard", tmp_path / "x.npz", *QUICK, "--epochs", "1"]
    told = ser("learn", state, *words, "--set", "net.width=8", "--batch-size", "500", "--all")
    assert told.out.count(" guard ") == number
    assert f"note: guard: {2 * number} of {2 * number} samples are in the training data too" in told.out


# Names

ODD_NAMES = (
    "[red]a[b]",
    "é" * 127,
    "x" * 255,
    "🐈‍⬛",
    "\u202eabc",
    "a,b",
    "%41",
    "-v",
    " lead",
    "$x$",
    "C:\\x",
)


@pytest.mark.slow
def test_names_of_any_script_and_length_are_shown_as_they_are(ser: Ser, tmp_path: Path) -> None:
    state, data = tmp_path / "state", tmp_path / "data"
    for seed, name in enumerate(ODD_NAMES):
        for file in ("[bold]1", "é" * 125, "😀"):
            save(data / name / f"{file}.png", grey(seed))
    learnt = ser("learn", state, "--data", data, *QUICK, "--json")
    assert learnt.code == 0, learnt.err
    assert sorted(learnt.json["classes"]) == sorted(ODD_NAMES)
    status = ser("status", state).out
    for shown in ("[red]a[b]", "🐈", "\\u202eabc", "%41", "$x$", "C:\\x"):
        assert shown in status
    assert "\u202e" not in status
    lines = ser("predict", state, data, *CPU).out.splitlines()
    assert [line.count("\t") for line in lines] == [2] * 3 * len(ODD_NAMES)
    assert ser("evaluate", state, "--data", data, "--confusion", tmp_path / "c.png", *CPU).code == 0
    assert ser("memory", state, "export", tmp_path / "out").code == 0
    assert "[red]a[b]" in ser("history", state, "--all").out


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "\x1b[31mred", "\x7f", "\x9b31m", os.fsdecode(b"\xff")])
@pytest.mark.parametrize("kind", ["class", "file"])
def test_names_that_are_no_text_are_refused_by_learn_and_escaped_by_predict(
    name: str, kind: str, ser: Ser, state: Path, tmp_path: Path
) -> None:
    file = f"{name}/1.png" if kind == "class" else f"ok/{name}.png"
    save(tmp_path / "data" / "ok" / "0.png", grey(0))
    save(tmp_path / "data" / file, grey(1))
    before = contents(state)
    refused = ser("learn", state, "--data", tmp_path / "data", *CPU)
    told_in_a_line(refused, "names must be text without control characters", "; rename it")
    answered = ser("predict", state, tmp_path / "data", *CPU)
    assert answered.code == 0
    for text in (refused.err, answered.out):
        assert text.replace("\n", "").replace("\t", "").isprintable()
    assert len(answered.out.splitlines()) == 2
    assert contents(state) == before


def test_an_error_cannot_command_the_terminal(ser: Ser, state: Path, tmp_path: Path) -> None:
    said = ser("learn", state, "--data", tmp_path / "\x1b[2Jgone", *CPU)
    told_in_a_line(said, "\\x1b[2Jgone is missing")


@pytest.mark.parametrize("name", ["x" * 300, "loop", "loop/inside"])
def test_paths_that_lead_nowhere_are_told(name: str, ser: Ser, state: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    before = contents(state)
    place = tmp_path / name
    told_in_a_line(ser("learn", state, "--data", place, *CPU), "cannot be read")
    told_in_a_line(ser("learn", place, "--data", tmp_path, *CPU), "; ")
    told_in_a_line(ser("status", place), "no model is kept there")
    told_in_a_line(ser("predict", place, tmp_path, *CPU), "no model is kept there")
    assert contents(state) == before


# A disk that is full or read-only


def limit_files(most: int) -> None:
    """No file may grow beyond so many bytes: what a full disk says, comes as another error of the system."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def fill_disk_for_commit() -> None:
    limit_files(1000)


def fill_disk_to_the_brim() -> None:
    limit_files(0)


def test_without_room_for_a_version_the_last_one_stays_and_repeating_helps(
    ser: Ser, state: Path, photos: Path
) -> None:
    before, words = contents(state), ["learn", state, "--data", photos / "june", "--max-drop", "100", *CPU]
    told_in_a_line(
        run_apart(*words, before=fill_disk_for_commit),
        "could not be written (File too large); make room and repeat, the version in use is still the one",
    )
    assert contents(state) == before
    assert ser(*words).code == 0
    assert Store(state).current == "v2"
    assert Store(state).verify() == []


def test_without_room_for_anything_nothing_begins(state: Path, photos: Path, tmp_path: Path) -> None:
    before = contents(state)
    for place in (state, tmp_path / "new" / "model"):
        said = run_apart("learn", place, "--data", photos / "june", *CPU, before=fill_disk_to_the_brim)
        told_in_a_line(said, f"{place}: no state can be kept there (File too large); fix that or choose")
    assert contents(state) == before
    assert not (tmp_path / "new").exists()


def fill_disk_for_checkpoints() -> None:
    """A checkpoint is due after every step."""
    from strongreplay.models import update

    fill_disk_for_commit()
    update.CHECKPOINT_SECONDS = 1e-9


def test_without_room_for_a_checkpoint_it_says_what_to_do(ser: Ser, state: Path, photos: Path) -> None:
    before, words = contents(state), ["learn", state, "--data", photos / "june", "--max-drop", "100", *CPU]
    said = run_apart(*words, before=fill_disk_for_checkpoints)
    told_in_a_line(
        said, "the checkpoint could not be written (File too large); make room and repeat the comm"
    )
    assert "--out" not in said.err
    assert contents(state) == before
    assert not (state / WORK).exists()
    assert ser(*words).code == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes and reads everywhere")
def test_a_read_only_model_answers_and_does_not_learn(ser: Ser, state: Path, photos: Path) -> None:
    before = contents(state)
    state.chmod(0o555)
    try:
        told_in_a_line(ser("learn", state, "--data", photos / "june", *CPU), "no state can be kept there")
        assert ser("predict", state, photos / "june", *CPU).code == 0
        assert ser("status", state).code == 0
    finally:
        state.chmod(0o755)
    assert contents(state) == before


# A damaged model


def every_command(ser: Ser, state: Path, photos: Path) -> list[Said]:
    june = photos / "june"
    return [
        ser("predict", state, june, *CPU),
        ser("learn", state, "--data", june, "--max-drop", "100", *CPU),
        ser("status", state),
        ser("evaluate", state, "--data", june, *CPU),
    ]


def test_flipped_bytes_are_found_and_the_file_is_named(ser: Ser, state: Path, photos: Path) -> None:
    """Each command finds what is wrong with the parts it reads; none of them answers from wrong bytes."""
    for file in sorted((state / "objects").iterdir()):
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        before = contents(state)
        faulty = [said for said in every_command(ser, state, photos) if said.code]
        for said in faulty:
            told_in_a_line(said, str(file), "it is damaged; put the file back from a copy, or go to another")
        assert faulty
        assert contents(state) == before
        file.write_bytes(whole)
    assert ser("predict", state, photos / "june", *CPU).code == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"v9\n", "current: names v9, which is not there; choose one with rollback"),
        (b"\x00\xff", "is no version's name; choose a version with rollback"),
        (b"", "is no version's name; choose a version with rollback"),
        (None, "current: missing; choose a version with rollback: v1"),
    ],
)
def test_where_no_version_is_in_use_rollback_is_the_way_on(
    content: bytes | None, message: str, ser: Ser, state: Path, photos: Path
) -> None:
    if content is None:
        (state / "current").unlink()
    else:
        (state / "current").write_bytes(content)
    before = contents(state)
    for said in every_command(ser, state, photos):
        told_in_a_line(said, message)
        assert "read " not in said.err  # known before anything is read or learnt
    assert contents(state) == before
    assert ser("rollback", state, "v1").code == 0
    assert ser("predict", state, photos / "june", *CPU).code == 0
