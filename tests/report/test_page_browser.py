"""The report page in a real browser: sorting, filtering, values under the pointer, sizes, dark and print."""

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.pages import EVIL, make_found, make_record

from strongreplay.report import page, page_figures
from strongreplay.report.collect import Found

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REQUIRED = os.environ.get("STRONGREPLAY_BROWSER") == "required"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--force-color-profile=srgb", "--remote-debugging-pipe"),
)
NOISE = (
    *("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"),
    *("Page.javascriptDialogOpening", "Audits.issueAdded"),
)
LONGEST = 60.0  # seconds that any answer may take

if not CHROMIUM and not REQUIRED:
    pytest.skip("no browser: install chromium (Debian: apt-get install chromium)", allow_module_level=True)


class Browser:
    """A Chromium of its own, spoken to through two pipes in the DevTools protocol: no port, no driver."""

    def __init__(self) -> None:
        assert CHROMIUM, "no browser, but STRONGREPLAY_BROWSER=required: install chromium"
        self.home = tempfile.TemporaryDirectory(prefix="page-browser-", ignore_cleanup_errors=True)
        hears, self.sends = os.pipe()
        self.gets, says = os.pipe()
        # Chromium reads from descriptor 3 and writes to 4, which only a shell can be told to give it.
        script = f'exec "$@" 3<&{hears} 4>&{says}'
        words = ["bash", "-c", script, "chromium", CHROMIUM, *FLAGS, f"--user-data-dir={self.home.name}"]
        self.process = subprocess.Popen(
            [*words, "about:blank"],
            pass_fds=(hears, says),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(hears)
        os.close(says)
        self.number, self.buffer, self.session = 0, b"", ""
        self.messages: list[str] = []  # what the page wrote to the console, and what went wrong in it
        self.requests: list[str] = []
        self.loads = 0

    def __enter__(self) -> "Browser":
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *error: object) -> None:
        self.session = ""
        try:
            self.call("Browser.close")
            self.process.wait(10)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            os.killpg(self.process.pid, signal.SIGKILL)  # a session of its own: nothing else is in there
            self.process.wait(LONGEST)
        os.close(self.sends)
        os.close(self.gets)
        self.home.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.sends, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self.note(answer)

    def read(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.gets], [], [], LONGEST)
            part = os.read(self.gets, 2**20) if ready else b""
            assert part, "the browser does not answer"
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method in NOISE:
            self.messages.append(json.dumps(params)[:500])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loads += 1

    def open(self, url: str) -> None:
        loads = self.loads
        self.call("Page.navigate", url=url)
        while self.loads == loads:
            self.note(self.read())

    def run(self, code: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def media(self, scheme: str = "light", kind: str = "") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)

    def point(self, x: float, y: float, kind: str = "mouseMoved", **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector: str) -> None:
        box = self.box(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.point(*box, kind, button="left", clickCount=1)

    def box(self, selector: str) -> tuple[float, float]:
        """The middle of an element, brought into view."""
        found = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', inline: 'center'}); const r = e.getBoundingClientRect();"
            "return [r.left + r.width / 2, r.top + r.height / 2]; })()"
        )
        return found[0], found[1]

    def key(self, name: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=name,
                code=name,
                windowsVirtualKeyCode=code,
                text=text,
            )


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page with real verdicts, few figures, and a record that would like to do harm."""
    found = make_found()
    config = {"stream": EVIL, "seed": 0, "method": {"name": EVIL, "memory_size": 5}, "net": {"name": EVIL}}
    found.records += [make_record(config | {"seed": seed}, 50.0) for seed in range(2)]
    found.problems.append(EVIL)
    path = tmp_path_factory.mktemp("page") / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_figures, "MOST_FIGURES", 5)  # each takes time to draw; the fifth is the narrowest
        path.write_text(page.build(found), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def browser(address: str) -> Iterator[Browser]:
    with Browser() as opened:
        opened.size(1280, 900)
        opened.media("light")
        opened.open(address)
        yield opened
        assert opened.messages == []  # no error, no warning, no dialog
        assert all(url.startswith(("file:", "data:")) for url in opened.requests), opened.requests


SHOWN = "[...document.querySelectorAll('#cells tbody tr')].filter((row) => row.offsetHeight > 0)"


def column(browser: Browser, number: int) -> list[str]:
    """The texts that can be seen."""
    found: list[str] = browser.run(f"{SHOWN}.map((row) => row.cells[{number}].innerText.trim())")
    return found


def values(browser: Browser, number: int) -> list[float]:
    return [
        float(text.split()[0].replace("\u2212", "-")) for text in column(browser, number) if len(text) > 1
    ]


@pytest.mark.slow
def test_headings_sort_by_pointer_and_by_key(browser: Browser) -> None:
    heading = "#cells th:nth-child(8)"
    browser.click(f"{heading} button")
    up = values(browser, 7)
    assert len(up) == 5
    assert up == sorted(up)
    assert up != sorted(up, reverse=True)
    assert browser.run(f"document.querySelector('{heading}').ariaSort") == "ascending"
    browser.run(f"document.querySelector('{heading} button').focus()")
    browser.key("Enter", 13, "\r")
    assert values(browser, 7) == sorted(up, reverse=True)
    assert browser.run(f"document.querySelector('{heading}').ariaSort") == "descending"
    browser.click("#cells th:nth-child(1) button")
    assert column(browser, 0) == sorted(column(browser, 0))
    assert browser.run("document.querySelectorAll('#cells [aria-sort]').length") == 1
    # Of all cells, those without a number come last, whichever way.
    browser.click("#filters [name=all]")
    browser.click("#cells th:nth-child(7) button")
    published = column(browser, 6)
    with_number = [not text.startswith("\u2013") for text in published]
    assert with_number == sorted(with_number, reverse=True)
    numbers = [float(text.split()[0]) for text in published if not text.startswith("\u2013")]
    assert len(numbers) > 300
    assert numbers == sorted(numbers)


def test_filters_hide_rows_and_say_how_many_are_left(browser: Browser) -> None:
    def choose(name: str, value: str) -> int:
        browser.run(
            f"(() => {{ const e = document.getElementById('filters').elements.{name}; e.value = '{value}';"
            "e.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )
        return int(browser.run(f"{SHOWN}.length"))

    assert int(browser.run(f"{SHOWN}.length")) == 5
    assert choose("verdict", "below") == 1
    assert column(browser, 8) == ["▼below"]
    assert browser.run("document.querySelector('#filters output').value") == "1 of 396 cells shown"
    assert choose("verdict", "") == 5
    assert choose("method", "ser") == 2
    assert choose("stream", "r-mnist") == 0
    browser.click("#filters [name=all]")
    assert choose("method", "") > 10
    assert set(column(browser, 2)) == {"r-mnist"}
    assert choose("stream", "") == 396
    browser.run("document.querySelector('#filters [name=text]').focus()")
    browser.call("Input.insertText", text="Forgetting  ser class")
    assert set(column(browser, 0)) == {"SER"}
    assert {text.split()[1] for text in column(browser, 1)} == {"3"}


def test_a_mark_tells_its_value_under_the_pointer_and_by_key(browser: Browser) -> None:
    told = browser.run("document.querySelector('figure [data-tip]').dataset.tip")
    assert any(character.isdigit() for character in told)
    tip = "document.querySelector('.tip')"
    assert browser.run(f"{tip}.hidden") is True
    x, y = browser.box("figure [data-tip]")
    browser.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    browser.point(x, y)
    assert browser.run(f"{tip}.hidden") is False
    assert browser.run(f"{tip}.textContent") in browser.run(
        "[...document.querySelector('figure svg').querySelectorAll('[data-tip]')].map((m) => m.dataset.tip)"
    )
    browser.point(2, 2)
    assert browser.run(f"{tip}.hidden") is True
    browser.run("document.querySelector('figure svg').focus({preventScroll: true})")
    browser.key("ArrowRight", 39)
    assert browser.run(f"{tip}.textContent") == told
    assert browser.run("document.querySelectorAll('figure svg title').length") == 0


@pytest.mark.slow
def test_a_page_of_ones_own_runs_has_no_cells_of_the_paper(browser: Browser, tmp_path: Path) -> None:
    own = make_record({"stream": "mine", "seed": 0, "method": {"name": "er"}}, 50.0)
    (tmp_path / "own.html").write_text(page.build(Found([own])), encoding="utf-8")
    browser.open((tmp_path / "own.html").as_uri())
    assert browser.run(f"{SHOWN}.length") == 0
    assert browser.run("document.querySelectorAll('#tables tbody tr').length") == 1
    browser.click("#tables thead button")  # sorting works without the filters


@pytest.mark.slow
def test_sections_fold_and_a_link_into_one_opens_it(browser: Browser) -> None:
    links = browser.run("[...document.querySelectorAll('nav a')].map((a) => a.hash.slice(1))")
    sections = browser.run("[...document.querySelectorAll('main > section')].map((s) => s.id)")
    assert links == sections
    assert len(links) == 8
    is_open = "document.querySelector('#definitions > details').open"
    browser.click("#definitions > details > summary")
    assert browser.run(is_open) is False
    browser.click("#verdicts a[href='#rule']")
    browser.run("new Promise((done) => setTimeout(done, 100))")
    assert browser.run(is_open) is True
    top = browser.run("document.getElementById('rule').getBoundingClientRect().top")
    assert 0 <= top < 800


def test_no_figure_is_cut_on_a_wide_screen(browser: Browser) -> None:
    browser.size(1280, 800)
    plots = "[...document.querySelectorAll('figure .plot')]"
    assert browser.run(f"{plots}.length") > 0
    assert browser.run(f"{plots}.filter((plot) => plot.scrollWidth > plot.clientWidth).length") == 0


def test_figures_use_a_wide_screen(browser: Browser) -> None:
    browser.size(1600, 900)
    used = browser.run(
        "[...document.querySelectorAll('.figures figure')].map((f) => f.getBoundingClientRect().right)"
    )
    assert max(used) > 1450


@pytest.mark.slow
def test_it_fits_a_phone(browser: Browser) -> None:
    browser.size(390, 800)
    browser.run("document.querySelectorAll('details').forEach((entry) => { entry.open = true; })")
    browser.run("document.querySelectorAll('.figures figure').forEach((f) => f.classList.remove('large'))")
    assert browser.run("document.documentElement.scrollWidth") == 390
    inside = "(e) => e.scrollWidth <= e.clientWidth"
    assert browser.run(f"[...document.querySelectorAll('.plot')].every({inside})"), "figures fit"
    # Method, ours, published and verdict are in sight without scrolling sideways.
    for name in ("cells", "tests"):
        assert browser.run(f"({inside})(document.getElementById('{name}').parentElement)"), name
    rights = browser.run(f"{SHOWN}.map((row) => row.cells[8].getBoundingClientRect().right)")
    assert len(rights) == 5
    assert max(rights) <= 390
    wheres = browser.run(f"{SHOWN}.map((row) => row.cells[0].innerText)")
    assert all("p-mnist" in text and "Table 2" in text for text in wheres)
    # What is wider scrolls in its own box, under the names of its rows.
    first = browser.run(
        "(() => { const box = document.querySelector('#tables .box'); box.scrollLeft = 60;"
        "const cell = box.querySelector('tbody th');"
        "return cell.getBoundingClientRect().left - box.getBoundingClientRect().left; })()"
    )
    assert 0 <= first <= 2
    browser.click("button.enlarge")
    assert browser.run(f"[...document.querySelectorAll('.plot')].every({inside})") is False
    assert browser.run("document.documentElement.scrollWidth") == 390
    browser.click("#filters [name=all]")
    assert browser.run("document.documentElement.scrollWidth") == 390
    fits = "(field) => field.getBoundingClientRect().right <= field.parentNode.getBoundingClientRect().right"
    for width in (320, 375, 500):
        browser.size(width, 800)
        assert browser.run(f"[...document.querySelectorAll('#filters select')].every({fits})"), width


@pytest.mark.slow
def test_dark_changes_the_colours_and_print_leaves_out_the_tools(browser: Browser) -> None:
    background = "getComputedStyle(document.documentElement).backgroundColor"
    light = browser.run(background)
    browser.media("dark")
    assert browser.run(background) != light
    browser.media("dark", "print")
    assert browser.run(background) == "rgb(255, 255, 255)"
    assert browser.run("getComputedStyle(document.getElementById('filters')).display") == "none"
    assert browser.run("getComputedStyle(document.querySelector('figure')).breakInside") == "avoid"
    assert int(browser.run(f"{SHOWN}.length")) == 5
    browser.size(718, 1000)  # A4 between its margins
    widest = "Math.max(...[...document.querySelectorAll('table, figure svg')].map((e) => e.scrollWidth))"
    assert browser.run(widest) <= 718
    assert len(browser.call("Page.printToPDF")["data"]) > 10_000
