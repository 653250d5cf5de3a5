"""The view of the engine beside a conversation, in a browser."""

from __future__ import annotations

import re
from contextlib import contextmanager
from itertools import pairwise

import httpx
import pytest

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

PAINTED = """([id, variable]) => {
  const canvas = document.getElementById(id);
  canvas.style.color = variable.startsWith("--") ? `var(${variable})` : variable;
  const [r, g, b] = getComputedStyle(canvas).color.match(/[0-9]+/g).map(Number);
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const columns = Array(width).fill(0);
  for (let at = 0; at < data.length; at += 4) {
    const is = data[at] === r && data[at + 1] === g && data[at + 2] === b && data[at + 3] === 255;
    if (is) columns[(at / 4) % width] += 1;
  }
  return columns;
}"""


def painted(page, canvas: str, colour: str) -> list[int]:
    """Return how many pixels of a colour each column of a canvas has."""
    return page.evaluate(PAINTED, [canvas, colour])


def bars(columns: list[int]) -> list[int]:
    """Return the heights of what is painted, from left to right."""
    drawn = "".join("x" if each else " " for each in columns)
    return [columns[match.start()] for match in re.finditer("x+", drawn)]


@contextmanager
def running(engine, *prompts):
    """Requests that have begun to answer, in an engine that stands still."""
    handles = []
    try:
        for prompt in prompts:
            handle, queue = engine.start_request(prompt, max_tokens=150, ignore_eos=True)
            handles.append(handle)
            next(iter(queue))
        engine.freeze()
        yield
    finally:
        engine.thaw()
        for handle in handles:
            engine.release(handle)


def test_the_engine_is_drawn_while_a_request_runs(page, engine):
    with running(engine, [5] * 40):
        page.click("#watch")
        expect(page.locator("#engine li")).to_have_count(1)

        assert "40 of prompt" in page.locator("#engine li").inner_text()
        spans = page.locator("#spans").get_attribute("aria-label")
        used, shared = map(int, re.findall(r"(\d+) (?:of \d+ spans|of them shared)", spans))
        assert used >= 40 / 16
        assert (shared, spans.endswith("by 1 sequences")) == (0, True)
        colour = page.locator("#engine li i").evaluate("(it) => it.style.background")
        assert sum(painted(page, "spans", colour)) > 0
        assert sum(painted(page, "spans", "--text")) == 0
    expect(page.locator("#engine li")).to_have_count(0)
    page.click("#watch")
    assert page.locator("#engine").is_hidden()


def test_a_prefix_that_sequences_share_is_drawn_as_nobodys_and_struck_out(page, engine):
    with running(engine, [7] * 64, [7] * 64 + [8]):
        page.click("#watch")
        expect(page.locator("#engine li")).to_have_count(2)

        spans = page.locator("#spans").get_attribute("aria-label")
        assert int(re.search(r"(\d+) of them shared", spans)[1]) == 64 / 16
        own = [each.evaluate("(it) => it.style.background")
               for each in page.locator("#engine li i").all()]  # fmt: skip
        assert len(set(own)) == 2
        assert all(sum(painted(page, "spans", colour)) > 0 for colour in own)
        plain = painted(page, "spans", "--text")
        cells = [each for each in plain if each]
        assert cells
        assert min(cells) < max(cells), "a stroke leaves some columns fewer pixels than others"


def test_first_tokens_are_drawn_by_the_time_they_took(opened, live):
    server = live()
    page = opened(server)
    url = "http://{}:{}".format(*server.address)
    page.click("#watch")
    expect(page.locator("#engine .median")).to_have_text("No first token yet")
    assert bars(painted(page, "first", "--mark")) == []
    for _ in range(3):
        body = {"prompt": "abc", "max_tokens": 2, "stream": True}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200

    expect(page.locator("#engine .median")).to_contain_text("Half of 3 first tokens took")

    found = httpx.get(f"{url}/metrics").text
    counted = re.findall(r"spaninfer_first_token_seconds_bucket\{.*?le=\"(.+?)\".*?\} (\S+)", found)
    passed = [0.0] + [float(count) for _, count in counted]
    counts = [after - before for before, after in pairwise(passed)]
    assert sum(counts) == 3
    heights = bars(painted(page, "first", "--mark"))
    filled = [count for count in counts if count]
    assert len(heights) == len(filled)
    for height, count in zip(heights, filled, strict=True):
        assert height == pytest.approx(max(heights) * count / max(filled), abs=2)
    median = next(bound for (bound, _), count in zip(counted, passed[1:], strict=True)
                  if 2 * count >= 3)  # fmt: skip
    assert f"at most {float(median):g} s" in page.locator("#engine .median").inner_text()
    assert page.locator("#first").get_attribute("aria-label").startswith("Half of 3 first tokens")


def test_a_server_that_shows_nobody_its_engine_says_why(browser, live):
    host, port = live(api_keys=("one", "two")).address
    tab = browser.new_context().new_page()
    tab.goto(f"http://{host}:{port}/")
    tab.fill("#secret", "one")
    tab.click("#key button")

    tab.click("#watch")

    expect(tab.locator("#engine .trouble")).to_contain_text("needs an admin key")
    tab.context.close()
