"""The playground in a browser, with real clicks; where Playwright and Chromium are installed."""

import json
import os
import shutil

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is not installed: python -m pip install playwright"
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")

ANSWER = (
    "**Bold** <img src=x onerror=document.title='run'>\n\n```js\nlet a = 1;\n```\n- one\n- two\n"
)
END = {"total_tokens": 12, "prompt_tokens": 5, "completion_tokens": 7}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser, live):
    """The page of a real server, in a tab of its own."""
    host, port = live().address
    tab = browser.new_context().new_page()
    tab.failures = []
    tab.on("pageerror", lambda error: tab.failures.append(error))
    tab.goto(f"http://{host}:{port}/")
    playwright.expect(tab.locator("#model")).not_to_have_text("…")
    yield tab
    assert tab.failures == []
    tab.context.close()


def events(text, *, ends=True):
    """Return a stream of answer events with this text, two tokens each."""
    said = [
        {"choices": [{"index": 0, "delta": {"content": text[at : at + 9]}, "token_ids": [1, 2],
                      "finish_reason": None}]}
        for at in range(0, len(text), 9)
    ]  # fmt: skip
    if ends:
        last = {"index": 0, "delta": {}, "token_ids": [3], "finish_reason": "stop"}
        said += [{"choices": [last]}, {"choices": [], "usage": END}]
    return "".join(f"data: {json.dumps(event)}\n\n" for event in said) + "data: [DONE]\n\n" * ends


def answers(page, text):
    """Have questions answered with this text; return the bodies that were sent."""
    bodies = []

    def answer(route):
        bodies.append(route.request.post_data_json)
        route.fulfill(content_type="text/event-stream", body=events(text))

    page.route("**/v1/chat/completions", answer)
    return bodies


STALLED = """(said) => {
  window.fetch = async (_, { signal }) => new Response(new ReadableStream({
    start(stream) {
      stream.enqueue(new TextEncoder().encode(said));
      signal.addEventListener("abort", () => stream.error(new DOMException("", "AbortError")));
    },
  }));
}"""


def stalls(page, text):
    """Have answers begin with this text, and never end; until a reload."""
    page.evaluate(STALLED, events(text, ends=False))


def ask(page, text):
    page.fill("#input", text)
    page.click("#send")


def test_an_answer_is_shown_as_markdown_and_nothing_in_it_runs(page):
    answers(page, ANSWER)

    ask(page, "Hello *you*")
    page.wait_for_selector(".assistant .note")

    answer = page.locator(".assistant .text")
    assert answer.locator("strong").inner_text() == "Bold"
    assert answer.locator("pre code").inner_text() == "let a = 1;"
    assert answer.locator("ul > li").count() == 2
    assert answer.locator("img").count() == 0
    assert "<img src=x" in answer.inner_text()
    assert page.title() == "spaninfer playground"
    assert page.locator(".user .text").inner_text() == "Hello *you*"


def test_a_question_survives_a_reload_while_its_answer_comes(page):
    stalls(page, "I will")
    ask(page, "Will you stay?")
    page.wait_for_selector(".running .text > *")

    bodies = answers(page, "Yes.")
    page.reload()

    assert page.locator(".user .text").inner_text() == "Will you stay?"
    page.click("text=Answer")
    page.wait_for_selector(".assistant .note")
    assert page.locator(".assistant .text").inner_text() == "Yes."
    assert bodies[0]["messages"] == [{"role": "user", "content": "Will you stay?"}]


def test_a_question_is_edited_and_sent_again_without_what_followed(page):
    bodies = answers(page, "Fine.")
    for text in ("first", "second"):
        ask(page, text)
        page.wait_for_selector(f".user:has-text('{text}') + .assistant .note")

    page.locator(".user:has-text('first') >> text=Edit").click()
    assert page.input_value("#input") == "first"
    assert page.locator("#messages > li").count() == 0
    ask(page, "changed")
    page.wait_for_selector(".assistant .note")

    assert bodies[-1]["messages"] == [{"role": "user", "content": "changed"}]
    page.reload()
    assert page.locator(".user .text").all_inner_texts() == ["changed"]


def test_a_stopped_answer_says_how_many_tokens_came(page):
    stalls(page, "One **two** three four")  # nine characters and two tokens an event
    ask(page, "Tell me everything")
    page.wait_for_selector(".running strong")

    page.click("#stop")
    page.wait_for_selector(".assistant .note")

    note = page.locator(".assistant .note").inner_text()
    assert note.startswith("6 tokens")
    assert "stopped by you" in note
    assert page.locator(".assistant .text").inner_text() == "One two three four"


def test_defaults_are_shown_with_the_values_that_they_stand_for(page):
    output = page.locator("label:has([name=temperature]) output")
    assert output.inner_text() == "default, 1"

    page.locator("[name=temperature]").press("ArrowRight")
    assert output.inner_text() == "1.05"
    page.click("#reset")

    assert output.inner_text() == "default, 1"


PIXEL = bytes.fromhex(  # a PNG of one pixel
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc0"
    "00000301010018dd8db00000000049454e44ae426082"
)


def picture(name="crow.png", kind="image/png", data=PIXEL):
    return {"name": name, "mimeType": kind, "buffer": data}


@pytest.fixture
def seeing(page):
    """The page of a model that takes images, as the list of models says."""

    def listed(route):
        body = route.fetch().json()
        body["data"][0]["input_modalities"] = ["text", "image"]
        route.fulfill(json=body)

    page.route("**/v1/models", listed)
    page.reload()
    playwright.expect(page.locator("#attach")).to_be_visible()
    return page


def test_a_picture_is_attached_shown_sent_and_priced_and_survives_a_reload(seeing, monkeypatch):
    usage = END | {"prompt_tokens_details": {"cached_tokens": 0, "image_tokens": 64}}
    monkeypatch.setitem(globals(), "END", usage)
    bodies = answers(seeing, "A crow.")

    seeing.set_input_files("#file", [picture()])
    playwright.expect(seeing.locator("#attachments img")).to_be_visible()
    ask(seeing, "What is this?")
    seeing.wait_for_selector(".assistant .note")

    image, text = bodies[0]["messages"][0]["content"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert text == {"type": "text", "text": "What is this?"}
    assert seeing.locator("#attachments").is_hidden()
    for _ in range(2):
        assert seeing.locator(".user img").evaluate("(img) => img.naturalWidth") == 1
        assert "image: 64 tokens" in seeing.locator(".user .note").inner_text()
        seeing.reload()
        seeing.wait_for_selector(".assistant .note")


def test_a_picture_can_be_taken_away_and_comes_back_when_its_question_is_edited(seeing):
    bodies = answers(seeing, "Two.")
    seeing.set_input_files("#file", [picture("one.png"), picture("two.png")])
    seeing.locator("#attachments button").first.click()
    ask(seeing, "How many?")
    seeing.wait_for_selector(".assistant .note")
    assert [part["type"] for part in bodies[0]["messages"][0]["content"]] == ["image_url", "text"]

    seeing.locator(".user >> text=Edit").click()

    assert seeing.locator("#attachments img").count() == 1
    assert seeing.input_value("#input") == "How many?"


def test_what_the_model_cannot_take_is_refused_by_name(seeing):
    seeing.set_input_files("#file", [picture("song.mp3", "audio/mpeg")])

    playwright.expect(seeing.locator("#state")).to_have_text(
        "song.mp3 is audio/mpeg; this model takes image"
    )
    assert seeing.locator("#attachments").is_hidden()


def test_a_model_of_text_offers_no_attachments(page):
    assert page.locator("#attach").is_hidden()


# ---- the engine, probabilities, JSON -------------------------------------------------------------


def test_the_engine_is_drawn_while_a_request_runs(page, engine):
    handle, queue = engine.start_request([5] * 40, max_tokens=200, ignore_eos=True)
    next(iter(queue))
    engine.freeze()
    try:
        page.click("#watch")
        playwright.expect(page.locator("#engine li")).to_have_count(1)

        assert "40 of prompt" in page.locator("#engine li").inner_text()
        spans = page.locator("#spans").get_attribute("aria-label")
        assert "by 1 sequences" in spans
        assert " 0 of " not in spans
        coloured = page.locator("#spans").evaluate(
            "(canvas) => canvas.getContext('2d').getImageData(0, 0, 3, 3).data[3] === 255"
        )
        assert coloured
    finally:
        engine.thaw()
        engine.release(handle)
    playwright.expect(page.locator("#engine li")).to_have_count(0)
    page.click("#watch")
    assert page.locator("#engine").is_hidden()


def test_a_server_that_shows_nobody_its_engine_says_why(browser, live):
    host, port = live(api_keys=("one", "two")).address
    tab = browser.new_context().new_page()
    tab.goto(f"http://{host}:{port}/")
    tab.fill("#secret", "one")
    tab.click("#key button")

    tab.click("#watch")

    playwright.expect(tab.locator("#engine .trouble")).to_contain_text("needs an admin key")
    tab.context.close()


def test_tokens_are_shown_with_their_probabilities(page):
    page.check("[name=probabilities]")
    page.fill("[name=max_tokens]", "6")
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "Hello")
    page.wait_for_selector(".assistant .note")

    assert asked.value.post_data_json["top_logprobs"] == 5
    tokens = page.locator(".assistant .token")
    assert 1 <= tokens.count() <= 6
    title = tokens.first.get_attribute("title").splitlines()
    assert len(title) == 6, "its own probability, and the five likeliest"
    assert all(line.endswith(" %") for line in title[1:])


def test_answers_of_a_schema_are_marked_as_json(page):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    page.fill("[name=schema]", json.dumps(schema)[:-1])
    ask(page, "Is it")
    playwright.expect(page.locator("#state")).to_contain_text("no JSON yet")
    page.fill("[name=schema]", json.dumps(schema))
    playwright.expect(page.locator("#schema-state")).to_have_text("✓")
    bodies = answers(page, '{"a": 1}')

    page.click("#send")
    page.wait_for_selector(".assistant .note")

    asked = bodies[0]["response_format"]["json_schema"]
    assert asked == {"name": "answer", "schema": schema, "strict": True}
    assert "valid JSON" in page.locator(".assistant .note").inner_text()
    assert page.locator(".assistant pre code").inner_text().strip() == '{"a": 1}'


# ---- conversations -------------------------------------------------------------------------------


def test_conversations_are_kept_opened_again_and_deleted(page):
    answers(page, "Fine.")
    for question in ("the first", "the second"):
        ask(page, question)
        page.wait_for_selector(".assistant .note")
        page.click("#clear")
        assert page.locator("#messages > li").count() == 0

    other = page.context.new_page()  # another tab has a conversation of its own, and the same list
    other.goto(page.url)
    other.click("#history")
    assert other.locator("#chats li button:first-child").all_inner_texts() == [
        "the second",
        "the first",
    ]
    other.click("text=the first")
    assert other.locator(".user .text").all_inner_texts() == ["the first"]
    assert other.locator(".assistant .text").all_inner_texts() == ["Fine."]
    other.reload()
    assert other.locator(".user .text").all_inner_texts() == ["the first"]
    assert page.locator("#messages > li").count() == 0

    other.click("#history")
    other.click("[aria-label='Delete the first']")
    assert other.locator("#chats li button:first-child").all_inner_texts() == ["the second"]
    other.click("#chats >> text=Close")
    assert other.locator("#messages > li").count() == 0


def test_more_than_a_browser_keeps_drops_the_oldest(page):
    answers(page, "Fine.")
    page.evaluate(
        """() => localStorage.setItem("conversations", JSON.stringify(
          [4, 3, 2, 1].map((size, id) => ({ id, changed: 1,
            turns: [{ role: "user", content: `${size} ` + "x".repeat(1.2e6) }] }))))"""
    )
    ask(page, "y" * 600_000)
    page.wait_for_selector(".assistant .note")

    page.click("#history")

    titles = page.locator("#chats li button:first-child").all_inner_texts()
    assert [title[0] for title in titles] == ["y", "4", "3", "2"]
