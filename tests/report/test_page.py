"""The report page: everything is in it, nothing harms it, it stays small and quick, and needs no torch."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from support.pages import EVIL, make_found, make_record, paper_record

from strongreplay import resolve
from strongreplay.cli import main
from strongreplay.report.collect import Found, collect
from strongreplay.report.figures import TITLE_OF, PlannedFigure
from strongreplay.report.memory_picture import (
    MOST_IMAGES,
    MemoryContents,
    arrange,
    draw,
    grid_of,
)
from strongreplay.report.page import build
from strongreplay.report.page_figures import MOST_FIGURES, choose_figures
from strongreplay.report.page_text import breakable, clip, safe_text
from strongreplay.runs.paper import items
from strongreplay.storage.checkpoints import checkpoints
from strongreplay.storage.records import RunRecord, write_record

NOW = datetime(2030, 1, 2, 3, 4, tzinfo=UTC)


@pytest.fixture(scope="module")
def page() -> str:
    return build(make_found(), now=NOW)


def ser(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ser", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longest, and is looked at elsewhere."""
    monkeypatch.setattr("strongreplay.report.page_figures.MOST_FIGURES", 0)


@pytest.mark.slow
def test_runs_that_are_none_of_the_papers_are_not_buried_under_its_cells(page: str, no_figures: None) -> None:
    own = build(Found([make_record({"stream": "mine", "seed": 0, "method": {"name": "er"}}, 50.0)]))
    for words in ("data-verdict=", "of 396 cells in the paper", 'href="#verdicts"', 'id="against"'):
        assert (words in own, words in page) == (False, True), words
    order = [page.index(f'<section id="{name}"') for name in ("tables", "verdicts", "against", "figures")]
    assert order == sorted(order), "one's own runs come first"


def test_of_many_figures_some_of_every_kind_and_stream_are_shown() -> None:
    """Not only the first kind, as with many streams there is enough of it to fill the page."""
    about = [f"{stream}, net, memory {size}" for stream in "abcdef" for size in range(8)]
    plans = [PlannedFigure(kind, what, "", 2, Figure) for kind in TITLE_OF for what in about]
    chosen = choose_figures(plans, 2 * 3 * len(TITLE_OF))
    assert Counter(plan.kind for plan in chosen) == dict.fromkeys(TITLE_OF, 3)
    assert {plan.about for plan in chosen} == {about[0], about[8], about[16]}
    assert chosen == [plan for plan in plans if plan in chosen]
    assert len(choose_figures(plans, 9999)) == MOST_FIGURES
    large = [
        PlannedFigure("matrices", "a", "", 2, Figure, shapes=40),
        PlannedFigure("matrices", "b", "", 2, Figure),
    ]
    assert choose_figures(large, 50) == large[1:], "what does not fit makes room"


class Reader(HTMLParser):
    """Open elements, ids, and every address the page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for key, value in attrs:
            assert not key.startswith("on"), (tag, key)
            if key == "id":
                self.ids.append(value or "")
            if key in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
                (self.links if (value or "").startswith("#") else self.fetched).append(value or "")


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    return reader


def test_the_page_has_every_section_and_every_cell(page: str) -> None:
    reader = read(page)
    for name in ("verdicts", "against", "tables", "figures", "memories", "details", "definitions"):
        assert name in reader.ids, name
    assert len(re.findall(r"<tr data-stream=", page)) == len(items()) == 396
    assert "2030-01-02 03:04 UTC" in page
    assert "18 records: 5 configurations, 1 stream, 4 methods" in page
    for words in (
        "abc1234",
        "a fast one",
        "a book of recipes",
        "123,456,789 bytes",
        "method.memory_size=200",
    ):
        assert words in page, words
    assert "needs task identities, which Domain-IL does not have" in page
    assert "94.51 here, 95.51 in Table 4" in page
    assert page.count('role="math"') == 7
    assert "ser run STREAM --method METHOD --keep-state" in page


def test_verdicts_are_words_and_signs(page: str) -> None:
    rows = re.findall(r'<tr data-stream="p-mnist" data-method="(\w+)" data-verdict="([^"]+)" data-run>', page)
    found = {(method, verdict) for method, verdict in rows}
    assert found == {
        *(("ser", "reproduced"), ("er", "reproduced"), ("derpp", "below"), ("sgd", "too few seeds")),
    }
    for sign, word in (("✓", "reproduced"), ("▼", "below"), ("?", "too few seeds"), ("○", "not run")):
        assert f'<i aria-hidden="true">{sign}</i>{word}' in page


def test_ser_is_compared_over_common_seeds(page: str) -> None:
    section = page[page.index('id="against"') : page.index('id="figures"')]
    assert section.count('<tr><th scope="row"') == 4  # SGD has no memory and is in both columns
    gap = re.search(r'\+10\.33 <span class="pm">± ([\d.]+)</span>', section)  # 83 minus 72.67, five seeds
    assert gap, "the interval of the difference is beside it"
    assert "ahead" in section
    assert "not decided" in section  # two common seeds with SGD


def test_the_page_fetches_nothing_and_its_links_lead_somewhere(page: str) -> None:
    reader = read(page)
    assert all(address.startswith("data:") for address in reader.fetched), reader.fetched
    assert {link.removeprefix("#") for link in reader.links} <= set(reader.ids)
    assert len(reader.ids) == len(set(reader.ids))
    assert "url(http" not in page
    assert "@import" not in page
    assert reader.tags.count("script") == 1
    assert "svg" in reader.tags


def test_settings_are_broken_between_their_parts() -> None:
    assert breakable("SER (a=1,b) <i>") == "SER (a=<wbr>1,<wbr>b) &lt;i&gt;"


def test_names_from_records_do_no_harm(tmp_path: Path) -> None:
    config = {"stream": EVIL, "seed": 0, "method": {"name": EVIL, "memory_size": 5, EVIL: EVIL}, EVIL: [EVIL]}
    config |= {"net": {"name": EVIL}, "data": {EVIL: EVIL}}
    records = [make_record(config | {"seed": seed}, 50.0, ("class-il", EVIL)) for seed in range(3)]
    measured = {
        EVIL: EVIL,
        "versions": {EVIL: EVIL},
        "hardware": {EVIL: EVIL},
        "recipe": EVIL,
        "started": EVIL,
    }
    measured["phases"] = {EVIL: {"seconds": 1, "peak_memory_bytes": 1}}
    records = [RunRecord(record.config, record.results, measured) for record in records]
    paths = {id(record): tmp_path / EVIL / "seed.json" for record in records}
    text = build(Found(records, paths, [EVIL], [EVIL]))
    reader = read(text)
    assert reader.tags.count("script") == 1
    assert "img" not in reader.tags
    assert "&lt;script&gt;alert(" in text


def test_records_with_little_in_them_are_shown_too() -> None:
    bare = {"stream": "s", "seed": 0, "method": {"name": "$x_$"}}
    stopped = RunRecord(bare, {"accuracy": {}}, {})
    scores = {"class-il": {"matrix": [[50.0, None], [None, 40.0]], "average_accuracy": None}}
    strange = RunRecord(bare | {"net": "none", "data": 3, "seed": 1}, {"accuracy": scores}, {})
    short = RunRecord(bare | {"train": {"lr": 2}}, {"accuracy": scores}, {"phases": {}})
    text = build(Found([stopped, strange, short]))
    assert "not known" in text
    assert "$x_$" in text


@pytest.mark.slow
def test_texts_without_end_are_cut() -> None:
    assert clip("a" * 300) == "a" * 199 + "…"
    assert safe_text("ünï \u202egnp.exe\u2066\x00\x1b") == "ünï \ufffdgnp.exe\ufffd\ufffd\ufffd"
    record = paper_record("ser", 0, 80.0)
    record.config["method"]["name"] = "<" * 3_000_000
    assert len(build(Found([record])).encode()) < 2_000_000


def write_many(folder: Path) -> None:
    """5,000 records of 1,000 configurations."""
    base = resolve("split-digits", "ser").to_dict()
    for stream, size, method, seed in product(range(10), (50, 100, 200, 500, 1000), range(20), range(5)):
        own = base["method"] | {"name": f"method-{method}", "memory_size": size}
        config = base | {"stream": f"stream-{stream}", "seed": seed, "method": own}
        write_plain(folder, make_record(config, 50 + method + seed / 10, ("class-il", "task-il")))


def write_plain(folder: Path, record: RunRecord) -> None:
    """Without waiting for the disk, as `write_record` does."""
    method, size = record.method, record.memory_size
    path = folder / record.stream / f"{method}-m{size}" / f"seed-{record.seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record.to_json(), encoding="utf-8")


@pytest.mark.slow
def test_five_thousand_records_in_ten_seconds_and_two_megabytes(tmp_path: Path) -> None:
    write_many(tmp_path)
    start = time.process_time()  # the wall clock would count what else the machine does
    found = collect([tmp_path])
    text = build(found)
    spent = time.process_time() - start
    assert len(found.records) == 5000
    assert spent < 15, f"{spent:.1f} s"  # half of it on a quiet machine, where it must be below 10
    assert len(text.encode()) < 2_000_000
    assert "configurations left out" in text
    assert "figures left out" in text


@pytest.mark.usefixtures("no_figures")
def test_damaged_files_are_listed_and_each_file_counts_once(tmp_path: Path) -> None:
    write_record(tmp_path, paper_record("ser", 0, 80.0))
    (tmp_path / "foreign.json").write_text("{}")
    (tmp_path / "cut.json").write_text('{"format": 1, "conf')
    found = collect([tmp_path, tmp_path / "p-mnist", tmp_path])
    assert (len(found.records), len(found.problems)) == (1, 2)
    text = build(found)
    assert "Files passed over (2)" in text
    assert "foreign.json: not a run record" in text
    assert str(tmp_path / "p-mnist") in text


# The memory's contents


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run that kept its state."""
    folder = tmp_path_factory.mktemp("kept")
    words = ["run", "split-digits", "--memory", "50", "--threads", "1", "--keep-state", "-o", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        assert ser(patch, *words, "--set", "train.epochs=1") == 0
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_the_memory_is_shown_as_a_picture(kept: Path) -> None:
    text = build(collect([kept]))
    found = re.search(r'<img src="(data:image/png;base64,[^"]+)" alt="([^"]+)"', text)
    assert found
    assert found[2].startswith(
        "split-digits, SER, memory 50, seed 0: 50 images in the memory, one row per class"
    )


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("fault", ["flipped", "cut", "missing", "manifest", "newer", "link"])
def test_a_damaged_state_is_named_and_passed_over(kept: Path, tmp_path: Path, fault: str) -> None:
    shutil.copytree(kept, tmp_path / "copy")
    checkpoint = next((tmp_path / "copy").rglob("state-000001"))
    damage(checkpoint, fault)
    found = collect([tmp_path / "copy"])
    text = build(found)
    assert len(found.damaged) == 1
    assert str(checkpoint) in found.damaged[0]
    assert "States that could not be read" in text
    assert "<img" not in text


def damage(checkpoint: Path, fault: str) -> None:
    tensors, manifest = checkpoint / "tensors.safetensors", checkpoint / "manifest.json"
    data = tensors.read_bytes()
    told = json.loads(manifest.read_text())
    if fault == "flipped":
        tensors.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif fault == "cut":
        tensors.write_bytes(data[:1000])
    elif fault == "missing":
        tensors.unlink()
    elif fault == "manifest":
        manifest.write_text(json.dumps(told | {"step": 7}))
    elif fault == "newer":
        manifest.write_text(json.dumps(told | {"format": 99}))
    else:
        tensors.rename(checkpoint / "elsewhere")
        tensors.symlink_to(checkpoint / "elsewhere")


def test_an_older_checkpoint_serves_where_the_newest_is_damaged(kept: Path, tmp_path: Path) -> None:
    shutil.copytree(kept, tmp_path / "copy")
    folder = next((tmp_path / "copy").rglob("*.state"))
    shutil.copytree(folder / "state-000001", folder / "state-000002")
    damage(folder / "state-000002", "cut")
    told: list[str] = []
    assert [path.name for path in checkpoints(folder)] == ["state-000002", "state-000001"]
    assert grid_of(folder, told.append)
    assert len(told) == 1


def test_pictures_are_sorted_spread_and_no_larger_than_they_must_be() -> None:
    import numpy as np

    labels = np.array([2, 0, 1] * 400)
    rows = arrange(labels, len(labels))
    assert [set(labels[row].tolist()) for row in rows] == [{0}, {1}, {2}]
    assert sum(map(len, rows)) <= MOST_IMAGES
    assert max(rows[0]) > 1100  # from all of the memory, not its beginning
    many = arrange(np.arange(300) % 100, 300)
    assert sum(map(len, many)) == MOST_IMAGES
    images = np.random.default_rng(0).integers(0, 256, (300, 3, 64, 64), dtype=np.uint8)
    grid = draw(MemoryContents(images, None))
    assert (grid.width, grid.height) == (20 * 33 - 1, 10 * 33 - 1)
    assert "200 of 300 images" in grid.text
    assert len(grid.address) < 400_000


# The command


@pytest.mark.slow
def test_the_command_writes_one_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(tmp_path / "runs", paper_record("ser", 0, 80.0))
    (tmp_path / "runs" / "foreign.json").write_text("[]")
    out = tmp_path / "new" / "page.html"
    assert ser(monkeypatch, "report", str(tmp_path / "runs"), "-o", str(out)) == 0
    told = capsys.readouterr()
    assert re.search(r"report: \S+page.html \(0\.\d\d MB, 1 record\)", told.out)
    assert "passed over" in told.err
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("mistake", ["nowhere", "empty", "unwritable"])
def test_mistakes_get_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mistake: str
) -> None:
    write_record(tmp_path / "runs", paper_record("ser", 0, 80.0))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    place = {"nowhere": "nowhere", "empty": "empty"}.get(mistake, "runs")
    out = tmp_path / "file" / "page.html" if mistake == "unwritable" else tmp_path / "page.html"
    assert ser(monkeypatch, "report", str(tmp_path / place), "-o", str(out)) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith("error: ")
    words = {"nowhere": "no such file or folder", "empty": "no records in", "unwritable": "cannot be written"}
    assert words[mistake] in told
    assert not out.exists()


@pytest.mark.slow
def test_the_page_needs_no_torch(tmp_path: Path) -> None:
    write_record(tmp_path, paper_record("ser", 0, 80.0))
    code = (
        "import sys; from pathlib import Path; import strongreplay.cli;"
        "from strongreplay.report.collect import collect; from strongreplay.report.page import build;"
        "build(collect([Path(sys.argv[1])]));"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
