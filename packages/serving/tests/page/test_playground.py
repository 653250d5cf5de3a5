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


def test_an_answer_looks_the_same_after_a_reload(page):
    answers(page, '{"a": [1, 2]}')
    page.fill("[name=schema]", '{"type": "object"}')
    ask(page, "JSON, please")
    playwright.expect(page.locator(".assistant .note")).to_contain_text("✓ valid JSON")
    before = page.locator(".assistant").inner_text()

    page.reload()

    playwright.expect(page.locator(".assistant pre code")).to_have_text('{"a": [1, 2]}')
    assert page.locator(".assistant").inner_text() == before


def test_a_narrow_page_shows_the_models_name_and_one_panel_at_a_time(page):
    page.set_viewport_size({"width": 360, "height": 640})
    name, engine, settings = (page.locator(each) for each in ("#model", "#engine", "#settings"))
    page.click("#toggle") if settings.is_visible() else None

    name.evaluate("(it) => it.textContent = 'Qwen/Qwen2.5-VL-7B-Instruct'")
    assert name.evaluate("(it) => it.scrollWidth <= it.clientWidth")
    for one, other, button in ((engine, settings, "#watch"), (settings, engine, "#toggle")):
        page.click(button)
        playwright.expect(one).to_be_visible()
        playwright.expect(other).to_be_hidden()
    page.locator("#chat").click(position={"x": 10, "y": 200})
    playwright.expect(settings).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


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


# ---- thoughts and tools --------------------------------------------------------------------------


def stream(*deltas, reason="stop"):
    """Return a stream of answer events with these deltas, one token each."""
    choices = [{"index": 0, "delta": delta, "token_ids": [1], "finish_reason": None}
               for delta in deltas]  # fmt: skip
    choices.append({"index": 0, "delta": {}, "token_ids": [2], "finish_reason": reason})
    said = [{"choices": [choice]} for choice in choices] + [{"choices": [], "usage": END}]
    return "".join(f"data: {json.dumps(event)}\n\n" for event in said) + "data: [DONE]\n\n"


def calling(*calls):
    """Return the deltas of these calls: the name first, then the arguments letter by letter."""
    deltas = []
    for index, (name, arguments) in enumerate(calls):
        begun = {"name": name, "arguments": ""}
        deltas.append(
            {"index": index, "id": f"call_{index}", "type": "function", "function": begun}
        )
        deltas += [{"index": index, "function": {"arguments": letter}} for letter in arguments]
    return [{"tool_calls": [delta]} for delta in deltas]


def answers_in_turn(page, *streams):
    """Have questions answered with these streams, one each; return the bodies that were sent."""
    bodies, left = [], list(streams)

    def answer(route):
        bodies.append(route.request.post_data_json)
        route.fulfill(content_type="text/event-stream", body=left.pop(0))

    page.route("**/v1/chat/completions", answer)
    return bodies


def test_thoughts_are_folded_over_the_answer_and_kept(page):
    bodies = answers_in_turn(
        page, stream({"reasoning_content": "Hm, <b>crows</b>."}, {"content": "A crow."})
    )
    ask(page, "What is it?")
    page.wait_for_selector(".assistant .note")

    for _ in range(2):
        assert page.locator(".thought div").is_hidden()
        page.locator(".thought summary").press("Enter")
        assert page.locator(".thought div").inner_text() == "Hm, <b>crows</b>."
        assert page.locator(".assistant .text").inner_text() == "A crow."
        page.reload()
    assert len(bodies) == 1


def test_tools_are_written_marked_and_sent(page):
    field, mark = page.locator("[name=tools]"), page.locator("#tools output")
    names = page.locator("[name=tool_choice] option")
    page.click("text=Add get_weather")
    playwright.expect(mark).to_have_text("✓ 1 function")
    defined = json.loads(field.input_value())
    cases = {
        '[{"name": "a"': "…",
        "[{name": "no JSON",
        "{}": "function 1 has no name",
        '[{"name": "a"}, {"name": "a"}]': "two functions are named a",
        '[{"name": "a b"}]': "letters, digits",
        '[{"name": "a", "parameters": []}]': "no JSON schema",
    }
    for text, says in cases.items():
        field.fill(text)
        playwright.expect(mark).to_contain_text(says)
        assert field.get_attribute("aria-invalid") == "true"
    ask(page, "Weather?")
    playwright.expect(page.locator("#state")).to_contain_text("the tools in Settings: ")

    field.fill(json.dumps([{"type": "function", "function": defined[0]}, {"name": "b"}]))
    playwright.expect(mark).to_have_text("✓ 2 functions")
    assert [text.split(":")[0] for text in names.all_inner_texts()] == [
        *("auto", "none", "required"),
        *("get_weather", "b"),
    ]
    bodies = answers_in_turn(page, *[stream({"content": "No."})] * 3)
    for number, choice in enumerate(("auto", "required", "= get_weather"), 1):
        page.select_option("[name=tool_choice]", choice)
        ask(page, "Weather?")
        page.wait_for_selector(f".assistant:nth-child({2 * number}) .note")

    assert [each["function"] for each in bodies[0]["tools"]] == [defined[0], {"name": "b"}]
    named = {"type": "function", "function": {"name": "get_weather"}}
    assert [body.get("tool_choice") for body in bodies] == [None, "required", named]
    page.reload()
    assert page.locator("[name=tool_choice]").input_value() == "= get_weather"
    assert "get_weather" in field.input_value()


def test_calls_are_cards_whose_results_go_on_with_the_conversation(page):
    page.click("text=Add get_weather")
    page.click("text=Add calculator")
    place = '{"place": "Oslo"}'
    bodies = answers_in_turn(
        page,
        stream({"reasoning_content": "Two."}, {"content": "Let me see."}, *calling(
            ("get_weather", place), ("calculator", '{"expression": "(2 + 3) * 4"}')),
            reason="tool_calls"),
        stream({"content": "Rain, and 20."}),
    )  # fmt: skip
    ask(page, "Weather in Oslo, and 5 times 4?")
    page.wait_for_selector(".assistant .note")

    cards = page.get_by_role("group", name="Call of")
    assert cards.locator(".head").all_inner_texts() == ["get_weather", "calculator"]
    assert json.loads(cards.first.locator("pre").inner_text()) == {"place": "Oslo"}
    assert page.get_by_label("Result of calculator").input_value() == "20"
    playwright.expect(page.get_by_label("Result of get_weather")).to_be_focused()
    ask(page, "Well?")
    playwright.expect(page.locator("#state")).to_have_text(
        "get_weather, calculator: give the result first"
    )
    page.get_by_label("Result of get_weather").fill("rain")
    page.reload()  # with what was written so far
    page.get_by_label("Result of get_weather").press("Enter")
    page.wait_for_selector(".assistant:nth-child(3) .note")

    assert len(bodies) == 2
    *_, asked, weather, sum_ = bodies[1]["messages"]
    assert asked["tool_calls"][0] == {
        "id": "call_0",
        "type": "function",
        "function": {"name": "get_weather", "arguments": place},
    }
    assert (asked["content"], asked["reasoning_content"]) == ("Let me see.", "Two.")
    assert weather == {"role": "tool", "tool_call_id": "call_0", "content": "rain"}
    assert sum_ == {"role": "tool", "tool_call_id": "call_1", "content": "20"}
    assert len(bodies[1]["tools"]) == 2
    page.reload()
    assert page.locator(".call .result pre").all_inner_texts() == ["rain", "20"]
    assert page.locator(".call textarea").count() == 0


def test_results_stay_where_no_answer_follows_and_cut_calls_are_told(page):
    page.click("text=Add get_weather")
    bodies = answers_in_turn(
        page,
        stream(*calling(("get_weather", "{}"), ("get_weather", '{"pla')), reason="length"),
        stream(reason="stop"),
        stream(*calling(("get_weather", '{"pla')), reason="length"),
        stream({"content": "Rain."}),
    )
    ask(page, "Weather?")
    page.wait_for_selector(".assistant .note")
    assert "a call was cut" in page.locator(".assistant .note").inner_text()
    result = page.get_by_label("Result of get_weather")
    assert result.count() == 1
    result.fill("rain")

    for says in ("ended its answer before the first word", "ended inside of a call"):
        page.click("text=Send result")
        playwright.expect(page.locator("#state")).to_contain_text(says)
        assert result.input_value() == "rain"
    page.click("text=Send result")
    playwright.expect(page.locator(".assistant .text").last).to_have_text("Rain.")

    assert len(bodies) == 4


def test_arguments_are_shown_while_they_come(page):
    page.click("text=Add get_weather")
    deltas = calling(("get_weather", '{"place": "Os'))
    said = "".join(
        f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n" for delta in deltas
    )
    page.evaluate(STALLED, said)
    ask(page, "Weather?")

    card = page.get_by_role("group", name="Call of get_weather")
    playwright.expect(card.locator("pre")).to_have_text('{"place": "Os')
    playwright.expect(card.locator(".head span")).to_have_text("…")
    assert page.locator(".call textarea").count() == 0
    page.click("#stop")

    playwright.expect(page.locator("#input")).to_have_value("Weather?")
    assert page.locator("#messages > li").count() == 0


def test_a_model_with_tools_calls_them_and_is_given_results(browser, scripted):
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "6 * 7"}}</tool_call>'
    with scripted(call) as (host, port):
        tab = browser.new_context().new_page()
        tab.goto(f"http://{host}:{port}/")
        playwright.expect(tab.locator("#model")).not_to_have_text("…")
        assert tab.locator("#no-tools").is_hidden()
        tab.click("text=Add calculator")
        ask(tab, "What is 6 times 7?")
        playwright.expect(tab.get_by_label("Result of calculator")).to_have_value("42")
        with tab.expect_response("**/v1/chat/completions") as answered:
            tab.keyboard.press("Enter")  # all results are there: the button has the focus
        tab.wait_for_selector(".assistant:nth-child(3) .note")

        assert answered.value.status == 200
        assert answered.value.request.post_data_json["messages"][-1]["content"] == "42"
        assert tab.locator(".error").count() == 0
        tab.context.close()


def test_a_model_without_tools_says_so(page):
    playwright.expect(page.locator("#no-tools")).to_be_visible()
