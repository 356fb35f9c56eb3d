"""Pages in a real Chromium, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Page, Request, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REQUIRED = os.environ.get("STRONGREPLAY_BROWSER") == "required"
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-dev-shm-usage", "--force-color-profile=srgb"),
]
LONGEST = 30_000.0  # milliseconds that anything may take


def skip_without_browser() -> None:
    if not CHROMIUM and not REQUIRED:
        pytest.skip(
            "no browser: install chromium (Debian: apt-get install chromium)", allow_module_level=True
        )


@contextmanager
def opened_browser(**options: Any) -> Iterator[BrowserContext]:
    assert CHROMIUM, "no browser, but STRONGREPLAY_BROWSER=required: install chromium"
    expect.set_options(timeout=LONGEST)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser.new_context(**options)
        browser.close()


def note_trouble(page: Page) -> list[str]:
    """Collects console errors, exceptions, dialogs and requests that leave loopback."""
    found: list[str] = []
    own = ("http://127.0.0.1:", "blob:http://127.0.0.1:")

    def on_dialog(dialog: Dialog) -> None:
        found.append(dialog.message)
        dialog.dismiss()

    def on_request(request: Request) -> None:
        if not request.url.startswith(own):
            found.append(request.url)

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error":
            found.append(message.text)

    page.on("console", on_console)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("dialog", on_dialog)
    page.on("request", on_request)
    return found
