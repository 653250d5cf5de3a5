"""The playground of a real server in a tab of headless Chromium."""

from __future__ import annotations

import os
import shutil

import pytest

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is not installed: python -m pip install playwright"
)
WAIT_MS = 60_000  # only ends a test that has failed
sync_api.expect.set_options(timeout=WAIT_MS)
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on the PATH")
    with sync_api.sync_playwright() as running:
        found = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser):
    """What opens the page of a server in a tab of its own, with options of the tab.

    No script of the page may have failed in the end.
    """
    tabs = []

    def open_page(live, **options):
        host, port = live.address
        tab = browser.new_context(**options).new_page()
        tab.set_default_timeout(WAIT_MS)
        tab.failures = []
        tab.on("pageerror", lambda error: tab.failures.append(error))
        tab.goto(f"http://{host}:{port}/")
        sync_api.expect(tab.locator("#model")).not_to_have_text("…")
        tabs.append(tab)
        return tab

    yield open_page
    for tab in tabs:
        assert tab.failures == []
        tab.context.close()


@pytest.fixture
def page(opened, live):
    return opened(live())
