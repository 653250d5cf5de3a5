"""Thoughts, definitions of tools and calls, in a browser."""

import json

import pytest
from page_answers import STALLED, answers_in_turn, ask, calling, stream

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed").expect


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
    expect(mark).to_have_text("✓ 1 function")
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
        expect(mark).to_contain_text(says)
        assert field.get_attribute("aria-invalid") == "true"
    ask(page, "Weather?")
    expect(page.locator("#state")).to_contain_text("the tools in Settings: ")

    field.fill(json.dumps([{"type": "function", "function": defined[0]}, {"name": "b"}]))
    expect(mark).to_have_text("✓ 2 functions")
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
    expect(page.get_by_label("Result of get_weather")).to_be_focused()
    ask(page, "Well?")
    expect(page.locator("#state")).to_have_text("get_weather, calculator: give the result first")
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
        expect(page.locator("#state")).to_contain_text(says)
        assert result.input_value() == "rain"
    page.click("text=Send result")
    expect(page.locator(".assistant .text").last).to_have_text("Rain.")

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
    expect(card.locator("pre")).to_have_text('{"place": "Os')
    expect(card.locator(".head span")).to_have_text("…")
    assert page.locator(".call textarea").count() == 0
    page.click("#stop")

    expect(page.locator("#input")).to_have_value("Weather?")
    assert page.locator("#messages > li").count() == 0


def test_a_model_with_tools_calls_them_and_is_given_results(browser, scripted):
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "6 * 7"}}</tool_call>'
    with scripted(call) as (host, port):
        tab = browser.new_context().new_page()
        tab.goto(f"http://{host}:{port}/")
        expect(tab.locator("#model")).not_to_have_text("…")
        assert tab.locator("#no-tools").is_hidden()
        tab.click("text=Add calculator")
        ask(tab, "What is 6 times 7?")
        expect(tab.get_by_label("Result of calculator")).to_have_value("42")
        with tab.expect_response("**/v1/chat/completions") as answered:
            tab.keyboard.press("Enter")  # all results are there: the button has the focus
        tab.wait_for_selector(".assistant:nth-child(3) .note")

        assert answered.value.status == 200
        assert answered.value.request.post_data_json["messages"][-1]["content"] == "42"
        assert tab.locator(".error").count() == 0
        tab.context.close()


def test_a_model_without_tools_says_so(page):
    expect(page.locator("#no-tools")).to_be_visible()
