"""The playground in a browser, with a picture dropped into it.

docs/images/playground.png and playground-dark.png are its views.
"""

from __future__ import annotations

import os
import shutil
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is not installed: python -m pip install playwright"
)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH"),
    pytest.mark.slow,
]

ANSWER_MS = 120_000  # only ends a test that has failed
SIZE = {"width": 1280, "height": 860}


def drawing() -> bytes:
    """A red circle, a blue square and a green triangle, from left to right."""
    picture = Image.new("RGB", (360, 240), "white")
    pen = ImageDraw.Draw(picture)
    pen.ellipse((24, 76, 112, 164), fill=(214, 30, 38))
    pen.rectangle((140, 80, 220, 160), fill=(30, 80, 220))
    pen.polygon(((290, 74), (336, 164), (244, 164)), fill=(30, 150, 60))
    file = BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def drop(page: Any, file: Path) -> None:
    """Drag a picture's file into the conversation, as the browser's user does."""
    file.write_bytes(drawing())
    session = page.context.new_cdp_session(page)
    for event in ("dragEnter", "dragOver", "drop"):
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        session.send("Input.dispatchDragEvent", {"type": event, "x": 400, "y": 300, "data": data})


def test_the_bundled_model_says_what_a_dropped_picture_shows(server, tmp_path: Path) -> None:
    asked = {
        "What do you see?": ("red circle", "blue square", "green triangle"),
        "How many shapes are there?": ("three",),
        "What shape is green?": ("triangle",),
    }
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(viewport=SIZE).new_page()
        page.goto(server.url)
        playwright.expect(page.locator("#attach")).to_be_visible()
        page.locator("[name=temperature]").evaluate(
            "(it) => { it.value = 0; it.dispatchEvent(new Event('input', { bubbles: true })); }"
        )
        drop(page, tmp_path / "shapes.png")
        cost = page.locator("#attachments figcaption")
        playwright.expect(cost).to_have_text("40 tokens", timeout=ANSWER_MS)
        for number, (question, said) in enumerate(asked.items(), 1):
            page.fill("#input", question)
            page.press("#input", "Enter")
            page.locator(".assistant .note").nth(number - 1).wait_for(timeout=ANSWER_MS)
            answer = page.locator(".assistant .text").nth(number - 1).inner_text()
            assert all(each in answer for each in said), answer
        assert page.locator(".user img").evaluate("(it) => it.naturalWidth") > 0
        assert page.locator(".user figcaption").all_inner_texts() == ["40 tokens"]
        page.screenshot(path=tmp_path / "playground.png")
        page.emulate_media(color_scheme="dark")
        page.screenshot(path=tmp_path / "playground-dark.png")
        browser.close()
