"""The playground in a browser, with real clicks; where Playwright and Chromium are installed."""

import json

import pytest
from page_answers import answers, ask, stalls

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect

ANSWER = (
    "**Bold** <img src=x onerror=document.title='run'>\n\n```js\nlet a = 1;\n```\n- one\n- two\n"
)


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


# ---- the engine, probabilities, JSON -------------------------------------------------------------


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
    expect(page.locator("#state")).to_contain_text("no JSON yet")
    page.fill("[name=schema]", json.dumps(schema))
    expect(page.locator("#schema-state")).to_have_text("✓")
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
    expect(page.locator(".assistant .note")).to_contain_text("✓ valid JSON")
    before = page.locator(".assistant").inner_text()

    page.reload()

    expect(page.locator(".assistant pre code")).to_have_text('{"a": [1, 2]}')
    assert page.locator(".assistant").inner_text() == before


def test_a_narrow_page_shows_the_models_name_and_one_panel_at_a_time(page):
    page.set_viewport_size({"width": 360, "height": 640})
    name, engine, settings = (page.locator(each) for each in ("#model", "#engine", "#settings"))
    page.click("#toggle") if settings.is_visible() else None

    name.evaluate("(it) => it.textContent = 'Qwen/Qwen2.5-VL-7B-Instruct'")
    assert name.evaluate("(it) => it.scrollWidth <= it.clientWidth")
    for one, other, button in ((engine, settings, "#watch"), (settings, engine, "#toggle")):
        page.click(button)
        expect(one).to_be_visible()
        expect(other).to_be_hidden()
    page.locator("#chat").click(position={"x": 10, "y": 200})
    expect(settings).to_be_hidden()
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


def test_a_system_prompt_belongs_to_its_conversation(page):
    bodies = answers(page, "Aye.")
    page.fill("[name=system]", "You are a pirate.")
    ask(page, "the pirate's")
    page.wait_for_selector(".assistant .note")
    page.click("#clear")
    page.fill("[name=system]", "")
    ask(page, "nobody's")
    page.wait_for_selector(".assistant .note")
    page.reload()
    assert page.input_value("[name=system]") == ""

    page.click("#history")
    page.click("text=the pirate's")

    assert page.input_value("[name=system]") == "You are a pirate."
    page.reload()
    ask(page, "Still?")
    expect(page.locator(".assistant .note")).to_have_count(2)
    assert bodies[-1]["messages"][0] == {"role": "system", "content": "You are a pirate."}
    assert bodies[1]["messages"] == [{"role": "user", "content": "nobody's"}]


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
