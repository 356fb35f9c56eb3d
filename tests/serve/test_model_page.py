"""The page of the service in a real browser: every act, no console error, no injection, no other sites."""

import base64
import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect
from support.browsers import note_trouble, opened_browser, skip_without_browser
from support.kept_models import NAMES, teach, write_folder
from support.pages import EVIL
from support.services import RunningService, running_service

from strongreplay.models.store import Store

skip_without_browser()
pytestmark = pytest.mark.slow
TOKEN = "correct-horse-battery-staple"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}
EVIL_FILE = "<img src=x onerror=alert(1)>.png"


def write_manifest(folder: Path, classes: tuple[int, ...], start: int, count: int) -> Path:
    """Photos in a CSV; the class two has a label, and its first photo a name, that would like to do harm."""
    write_folder(folder, classes, start, count)
    rows = ["path,label"]
    for path in sorted(folder.glob("*/*.png")):
        label = EVIL if path.parent.name == NAMES[2] else path.parent.name
        if label == EVIL and EVIL_FILE not in "".join(rows):
            path = path.rename(folder / EVIL_FILE)
        quoted = [str(path.relative_to(folder)), label]
        rows.append(",".join('"' + text.replace('"', '""') + '"' for text in quoted))
    (folder / "photos.csv").write_text("\n".join(rows) + "\n")
    return folder / "photos.csv"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """v1 of zero and one, v2 of the evil class, and a candidate of three."""
    folder = tmp_path_factory.mktemp("page")
    state, given = folder / "model", {"learner.memory": 160, "learner.val": 0.3}
    teach(state, write_manifest(folder / "january", (0, 1), 0, 25), settings=given, max_drop=200.0)
    teach(state, write_manifest(folder / "february", (2,), 0, 25), max_drop=200.0)
    assert (
        teach(state, write_manifest(folder / "march", (3,), 0, 10), max_drop=-200.0, level=1.0).version
        is None
    )
    return state


@pytest.fixture(scope="module")
def service(kept: Path) -> Iterator[RunningService]:
    with running_service(kept, token=TOKEN) as found:
        yield found


@pytest.fixture(scope="module")
def context() -> Iterator[BrowserContext]:
    with opened_browser(viewport={"width": 1400, "height": 1000}) as found:
        yield found


@pytest.fixture
def page(context: BrowserContext, service: RunningService) -> Iterator[Page]:
    opened = context.new_page()
    trouble = note_trouble(opened)
    opened.goto(service.address)
    opened.get_by_label("Token").fill(TOKEN)
    opened.get_by_role("button", name="Use token").click()
    expect(opened.locator("body")).to_have_attribute("data-version", "v2")
    yield opened
    assert trouble == []
    opened.close()


def test_a_photo_is_answered_with_its_neighbours_and_names_stay_text(page: Page, kept: Path) -> None:
    photo = kept.parent / "february" / EVIL_FILE
    page.get_by_label("Drop photos here").set_input_files(photo)
    answer = page.locator("#answers > li")
    expect(answer.locator(".pictures li")).to_have_count(6)
    assert EVIL_FILE in answer.locator("h3").inner_text()
    assert answer.locator("meter").count() == 3
    nearest = answer.locator(".pictures li").first
    assert nearest.inner_text() == f"{EVIL}, 1.00"  # itself: it is remembered or has a near copy
    assert page.locator("script").count() == 2  # its own
    assert page.locator("img[src='x']").count() == 0
    expect(page.locator("#classes tbody th").nth(2)).to_have_text(EVIL)
    expect(page.locator("#drift")).to_contain_text("of the newest 1 images")
    expect(page.locator("#memory-label option").nth(3)).to_have_text(EVIL)


DROP = """([name, content]) => {
  const bytes = Uint8Array.from(atob(content), (sign) => sign.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], name, { type: "image/png" }));
  document.getElementById("drop").dispatchEvent(new DragEvent("drop", { dataTransfer: carried }));
}"""


def test_right_labels_of_dropped_photos_are_saved_for_the_next_update(page: Page, kept: Path) -> None:
    photo = sorted(kept.parent.glob("january/one/*.png"))[0]
    names = [photo.name, 'a "second", one.png']
    for name in names:
        page.evaluate(DROP, [name, base64.b64encode(photo.read_bytes()).decode()])
        expect(page.locator("#answers h3")).to_contain_text(name)
        page.get_by_label("Right label").fill(EVIL if name == names[0] else "zero")
        page.get_by_label("Right label").press("Enter")
    assert page.locator("#labels option").count() == 3
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save 2 right labels as corrections.csv").press("Enter")
    text = saved.value.path().read_text()
    rows = [(row["path"], row["label"]) for row in csv.DictReader(text.splitlines())]
    assert rows == [(names[0], EVIL), (names[1], "zero")]


def test_every_act(page: Page, kept: Path) -> None:
    expect(page.locator("#candidate")).to_contain_text("fell by more than -200 points")
    total = int(page.locator("#memory-count").inner_text().split()[2])

    page.locator("#memory input").first.press("Space")  # by keyboard
    page.get_by_role("button", name="Forget the chosen samples").press("Enter")
    page.get_by_role("button", name="Cancel").press("Enter")
    assert Store(kept).history()[-1]["act"] == "refuse"  # a cancelled act does nothing
    page.get_by_role("button", name="Forget the chosen samples").click()
    page.get_by_role("button", name="Forget", exact=True).click()
    expect(page.locator("#message")).to_have_text("Forgotten: 1 samples.")
    expect(page.locator("#memory-count")).to_contain_text(f"of {total - 1} samples")

    page.get_by_role("button", name="Accept this update").click()
    page.get_by_role("button", name="Accept", exact=True).click()
    expect(page.locator("#message")).to_have_text("v3 is in use now.")
    expect(page.locator("#candidate")).to_be_hidden()
    expect(page.locator("#classes")).to_contain_text("few samples: 10")

    page.get_by_role("button", name="Roll back to v2").click()
    page.get_by_role("button", name="Use v2").click()
    expect(page.locator("#version")).to_have_text("v2")
    acts = [(line["act"], line.get("by")) for line in Store(kept).history()][-3:]
    assert acts == [("forget", "service"), ("accept", "service"), ("rollback", "service")]
    expect(page.locator("#history tbody tr").first).to_contain_text("rollback")


def test_a_version_of_a_command_appears_by_itself_and_the_page_fits_a_phone(
    page: Page, service: RunningService, kept: Path
) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(18, 21, 27)"
    small = page.evaluate(
        "[...document.querySelectorAll('button, input, select')].filter((e) => e.labels?.length === 0 &&"
        "!e.getAttribute('aria-label') && e.tagName !== 'BUTTON').length"
    )
    assert small == 0  # every field has a label
    store = Store(kept)
    with store.locked():
        store.rollback("v1", {"act": "rollback"})
    expect(page.locator("#version")).to_have_text("v1")
    with store.locked():
        store.rollback("v2", {"act": "rollback"})
    service.wait_for("v2")


def test_acts_are_refused_without_token_from_other_sites_and_while_another_writes(
    service: RunningService, kept: Path
) -> None:
    post = service.client.post
    assert post("/api/accept").status_code == 401
    assert service.client.get("/api/status").status_code == 401
    foreign = post("/api/accept", headers=RIGHT | {"Origin": "http://example.org"})
    assert (foreign.status_code, "other sites" in foreign.text) == (403, True)
    foreign = post("/api/forget", json={"ids": [1]}, headers=RIGHT | {"Sec-Fetch-Site": "cross-site"})
    assert foreign.status_code == 403
    with Store(kept).locked():
        busy = post("/api/rollback", json={"version": "v1"}, headers=RIGHT)
    assert (busy.status_code, "is at work here" in busy.json()["error"]) == (409, True)
    for path, content in (("rollback", {"version": "v99"}), ("forget", {"ids": [10**9]})):
        assert post(f"/api/{path}", json=content, headers=RIGHT).status_code == 400
    assert post("/api/forget", json={"ids": []}, headers=RIGHT).status_code == 422
    photo = next(kept.parent.glob("january/*/*.png")).read_bytes()
    assert post("/predict", content=photo, headers=RIGHT).json()["version"] == "v2"
    found = service.client.get("/api/drift", headers=RIGHT).json()
    assert (found["samples"] >= 1, found["rate"], found["version"]) == (True, 0.05, "v2")
    assert "ser_unlike_share" in service.client.get("/metrics", headers=RIGHT).text
    policy = service.client.get("/").headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert service.client.get("/static/..%2fpeople.py").status_code == 404


def test_without_a_token_the_service_shows_and_does_not_act(context: BrowserContext, kept: Path) -> None:
    orders = {"accept": {}, "rollback": {"version": "v1"}, "forget": {"ids": [1]}}
    with running_service(kept) as open_service:
        for name, content in orders.items():
            answer = open_service.client.post(f"/api/{name}", json=content)
            assert (answer.status_code, "--token" in answer.json()["error"]) == (403, True)
        opened = context.new_page()
        trouble = note_trouble(opened)
        opened.goto(open_service.address)
        expect(opened.locator("#summary")).to_contain_text("Nothing can be changed here")
        opened.get_by_role("button", name="Roll back to v1").click()
        expect(opened.locator("#message")).to_contain_text("no token")
        assert trouble == []
        opened.close()
    assert Store(kept).current == "v2"
