"""Accessibility of the page: keyboard, screen readers, both colour schemes."""

from __future__ import annotations

import json

import pytest
from page_answers import answers, answers_in_turn, ask, calling, stalls, stream
from seeing_folder import png

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

CONTRASTS = """() => {
  const parse = (text) => {
    const found = text.match(/-?[0-9.]+/g).map(Number);
    const scale = text.startsWith("color(") ? 255 : 1;
    return [...found.slice(0, 3).map((each) => each * scale), found[3] ?? 1];
  };
  const over = ([r, g, b, alpha], under) =>
    [r, g, b].map((each, at) => each * alpha + under[at] * (1 - alpha));
  const behind = (element) => {
    if (!element) return [255, 255, 255];
    const own = parse(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own.slice(0, 3) : over(own, behind(element.parentElement));
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((each) => {
      const part = each / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (element, style) => {
    const back = behind(element);
    const two = [light(over(parse(style.color), back)), light(back)];
    return (Math.max(...two) + 0.05) / (Math.min(...two) + 0.05);
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    if (!element.checkVisibility({ visibilityProperty: true }) || element.disabled) continue;
    const text = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE)
      .map((node) => node.textContent.trim()).join(" ").trim();
    const name = `${element.tagName} ${element.className} ${text || element.value || ""}`;
    if (text || element.value) found.push([name, contrast(element, getComputedStyle(element))]);
    if (element.placeholder && !element.value) {
      found.push([`placeholder ${name}`, contrast(element, getComputedStyle(element, "::placeholder"))]);
    }
  }
  return found;
}"""  # noqa: E501

MIN_CONTRAST = 4.5  # of WCAG 2, level AA, for text of any size

LACK_NAMES = """() => {
  const labelled = (it) => it.getAttribute("aria-label")
    ?? document.getElementById(it.getAttribute("aria-labelledby"))?.textContent
    ?? ([...(it.labels ?? [])].map((label) => label.textContent).join(" ") || null);
  const named = (it) => labelled(it) ?? it.alt ?? (it.matches("button, a, summary") ? it.textContent : "");
  const all = "button, input:not([type=hidden]), textarea, select, summary, a, img, video, audio, canvas, dialog";
  return [...document.querySelectorAll(all)]
    .filter((it) => !(it.alt === "" && it.closest("h1")) && it.id !== "file") // an ornament; a button opens it
    .filter((it) => !named(it)?.trim()).map((it) => it.outerHTML.slice(0, 120));
}"""  # noqa: E501

FOCUSED = """() => {
  const it = document.activeElement;
  if (it === document.body) return null;
  const ring = (each) => {
    const style = getComputedStyle(each);
    return parseFloat(style.outlineWidth) > 0 && style.outlineStyle !== "none" || style.boxShadow !== "none";
  };
  const box = it.closest("#form div");
  const { x, y, width, height } = it.getBoundingClientRect();
  const isSeen = width > 0 && height > 0 && x + width > 0 && y + height > 0 && x < innerWidth && y < innerHeight;
  return { name: it.id || it.name || it.ariaLabel || it.textContent.trim(), is_marked: ring(it) || Boolean(box && ring(box)), is_seen: isSeen };
}"""  # noqa: E501


def unlikely(word: str, logprob: float = -3.0) -> str:
    """Return a stream of one token, with its log-probability."""
    told = {"token": word, "bytes": list(word.encode()), "logprob": logprob, "top_logprobs": []}
    choice = {"index": 0, "delta": {"content": word}, "logprobs": {"content": [told]}}
    return f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"


def fill(page) -> None:
    """Have all kinds of things on the page: a picture, Markdown, thoughts, a call, an error."""
    markdown = (
        "# Title\n\n> said\n\n`code` and [a link](https://example.com)\n\n```js\nlet a;\n```\n"
    )
    answers_in_turn(
        page,
        stream({"reasoning_content": "Hm."}, {"content": markdown}),
        *(unlikely("oak"), unlikely("ash", -40.0)),
        stream({"content": "I call."}, *calling(("get_weather", '{"place": "Oslo"}'))),
    )
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": png(28, 28)})
    expect(page.locator("#attachments figcaption")).to_have_text("1 token")
    ask(page, "What is it?")
    page.wait_for_selector(".assistant .note")
    page.locator(".thought summary").press("Enter")
    for question in ("Which?", "And?"):
        ask(page, question)
        page.wait_for_selector(f".user:has-text('{question}') + .assistant .note")
    page.click("text=Add get_weather")
    ask(page, "Weather?")
    page.wait_for_selector(".call .result")
    page.fill("[name=schema]", "[{")
    page.click("#watch")
    expect(page.locator("#engine dd").first).to_be_visible()


@pytest.fixture(params=["light", "dark"])
def filled(request, opened, live, seeing_engine):
    page = opened(live(seeing_engine), color_scheme=request.param)
    page.set_viewport_size({"width": 1280, "height": 2400})
    fill(page)
    return page


def test_every_text_stands_out_from_what_is_behind_it(filled):
    found = filled.evaluate(CONTRASTS)
    filled.click("#history")
    found += filled.evaluate(CONTRASTS)

    assert len(found) > 60
    assert [each for each in found if each[1] < MIN_CONTRAST] == []


def test_the_page_follows_the_colour_scheme_of_the_system(opened, live):
    schemes = ("light", "dark")
    backs = [
        opened(live(), color_scheme=scheme).evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        for scheme in schemes
    ]

    light, dark = ([int(part) for part in back[4:-1].split(",")] for back in backs)
    assert min(light) > 200
    assert max(dark) < 50


def test_every_control_and_medium_has_a_name(filled):
    assert filled.evaluate(LACK_NAMES) == []
    names = {"slider": 4, "spinbutton": 3, "combobox": 1, "checkbox": 1}
    for role, number in names.items():
        assert filled.get_by_role(role).count() == number
    for name in ("Temperature", "Top-p", "Min-p", "Repetition penalty"):
        assert filled.get_by_role("slider", name=name).count() == 1
    for name in ("System prompt", "JSON schema of the answer", "Functions as JSON", "Your message"):
        assert filled.get_by_role("textbox", name=name).count() == 1


def test_tab_goes_to_every_control_and_shows_where_it_is(filled):
    reached = []
    filled.locator("#input").focus()
    while True:
        filled.keyboard.press("Tab")
        at = filled.evaluate(FOCUSED)
        if at is None:
            continue  # from the last to the first, by way of the browser's own
        reached.append(at)
        if at["name"] == "input" or len(reached) > 120:
            break

    assert [each for each in reached if not (each["is_marked"] and each["is_seen"])] == []
    names = {each["name"] for each in reached}
    assert {"clear", "history", "watch", "toggle", "attach", "input", "send"} <= names
    assert {"temperature", "top_p", "schema", "functions", "reset"} <= names
    assert {"Edit", "Thoughts"} <= names


def test_a_conversation_needs_no_mouse(page):
    answers(page, "Fine.")
    expect(page.locator("#input")).to_be_focused()
    page.keyboard.type("Hello")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("there")
    page.keyboard.press("Enter")
    page.wait_for_selector(".assistant .note")
    assert page.locator(".user .text").inner_text() == "Hello\nthere"
    expect(page.locator("#input")).to_be_focused()

    stalls(page, "One **two** three")
    page.keyboard.type("On")
    page.keyboard.press("Tab")
    expect(page.locator("#send")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_selector(".running strong")
    page.keyboard.press("Escape")

    expect(page.locator(".assistant .note").last).to_contain_text("stopped by you")
    expect(page.locator("#input")).to_be_focused()


def test_escape_closes_a_dialog_and_does_not_stop_the_answer_behind_it(page):
    stalls(page, "One **two** three")
    ask(page, "Go on")
    page.wait_for_selector(".running strong")
    page.locator("#history").press("Enter")
    expect(page.locator("#chats")).to_be_visible()

    page.keyboard.press("Escape")

    expect(page.locator("#chats")).to_be_hidden()
    expect(page.locator("#history")).to_be_focused()
    assert page.locator(".running").count() == 1
    page.keyboard.press("Escape")
    expect(page.locator(".running")).to_have_count(0)
