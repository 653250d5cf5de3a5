"""Malformed answers: no text is lost, nothing raises."""

import random
from itertools import pairwise

import pytest
from recorded_answers import (
    HERMES_NOW,
    HERMES_PARIS,
    RECORDED,
    TOOLS,
    form_of,
    read,
    said,
    without_ids,
)
from spaninfer_serving.dialects.events import Arguments, CallBroken, CallStart, assembled
from spaninfer_serving.dialects.literals import MAX_DEPTH
from spaninfer_serving.dialects.parser import AnswerFormat
from spaninfer_serving.dialects.reader import Reader
from spaninfer_serving.dialects.table import DIALECTS
from spaninfer_serving.dialects.writing import WRITINGS
from written_calls import written

EVERY_WRITING = pytest.mark.parametrize("name", WRITINGS)
EVERY_ANSWER = pytest.mark.parametrize("recorded", RECORDED.values(), ids=RECORDED)

FRAMED = ("harmony", "command_r7b", "functionary_v32")  # marks around content are left out


def form(dialect, **options):
    return AnswerFormat.of(DIALECTS[dialect], None, TOOLS, **options)


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("hermes", "a <tool_call"),
        ("hermes", "a <tool_call>"),
        ("hermes", "<tool_call>\n</tool_call>"),
        ("hermes", "<tool_call> is the mark, and </tool_call> ends it. "),
        ("hermes", '<tool_call>{"name": "now"'),
        ("hermes", '<tool_call>{"name": now, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": 7, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": "[1]"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": 01}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "\\x"}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": 1,}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "b'),
        ("qwen3_coder", "<function=now"),
        ("qwen3_coder", "<function=now>\n<parameter=a>\nx"),
        ("qwen3_coder", "<function=now>\nx</function>"),
        ("qwen3_coder", "<tool_call> alone"),
        ("qwen3_coder", f"<function={'x' * 300}></function>"),
        ("pythonic", "[get_weather('Paris')]"),
        ("pythonic", "[get_weather(city=__import__('os'))]"),
        ("pythonic", "[get_weather(city=f'{1}')]"),
        ("pythonic", "[get_weather(city=1+1)]"),
        ("pythonic", "[get_weather(city='a"),
        ("pythonic", "[get_weather(where={'a': {1, 2}})]"),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", "[TOOL_CALLS]now"),
        ("mistral", "[TOOL_CALLS]now[ARGS]7"),
        ("kimi_k2", "<|tool_calls_section_begin|>and no call"),
        ("glm45", "<tool_call>a function is called like this: <tool_call>"),
        ("glm45", "<tool_call>now\n<arg_key>a</arg_key>b"),
        ("minimax_m2", '<minimax:tool_call>\n<invoke name="'),
        ("gemma4", "<|tool_call>call:now{a}"),
        ("gemma4", '<|tool_call>call:now{a:<|"|>b'),
        ("functionary_v32", "fly\n{}"),
        ("llama3", '{"name": "now", "parameters": {"a": }}'),
        ("internlm2", "<|action_start|><|interpreter|>\nprint(1)"),
    ],
)
def test_a_malformed_call_is_content_as_it_was_written(dialect, text):
    for pieces in ([text], list(text)):
        content, _, calls, unfinished = said(read(form(dialect), pieces))

        assert content == text
        assert calls == []
        assert unfinished == []


def test_what_follows_a_malformed_call_is_read_as_ever():
    text = f"<tool_call>{{oops</tool_call>\n{HERMES_PARIS}"

    content, _, calls, _ = said(read(form("hermes"), list(text)))

    assert content == "<tool_call>{oops</tool_call>"
    assert calls == [("get_weather", {"city": "Paris"})]


def test_a_call_that_breaks_off_after_its_arguments_began_says_so():
    text = HERMES_NOW.replace("{}", '{"a": 1, oops}')

    *started, broken = read(form("hermes"), [text])[:3]

    assert [type(event) for event in started] == [CallStart, Arguments]
    assert broken == CallBroken(0, text[: text.index("oops")])


def test_a_limit_inside_of_a_call_leaves_what_there_is_of_it():
    text = HERMES_PARIS[: HERMES_PARIS.index("ris")]

    content, _, calls, unfinished = said(read(form("hermes"), list(text), is_cut=True))

    assert (content, calls, unfinished) == ("", [], ["get_weather"])


@EVERY_ANSWER
def test_an_answer_that_ends_anywhere_loses_nothing_and_tells_no_call_that_is_none(recorded):
    form, whole = form_of(recorded), list(recorded.calls)
    for stop in range(len(recorded.text)):
        events = read(form, [recorded.text[:stop]])

        content, _, calls, unfinished = said(events)
        assert unfinished == []
        assert calls == whole[: len(calls)]
        if not calls and not recorded.think and recorded.dialect not in FRAMED:
            assert content.endswith(recorded.text[:stop].lstrip()[-1:]), stop


@EVERY_ANSWER
def test_behind_a_call_that_a_limit_cuts_no_markup_is_content(recorded):
    form, text = form_of(recorded), recorded.text
    for stop in range(len(text)):
        for pieces in ([text[:stop]], list(text[:stop])):
            content, _, calls, unfinished = said(read(form, pieces, is_cut=True))

            if calls or unfinished:
                assert recorded.content.startswith(content), text[:stop]
                assert calls == list(recorded.calls)[: len(calls)]


@EVERY_WRITING
def test_of_calls_that_a_limit_cuts_anywhere_nothing_is_content(name):
    writing = WRITINGS[name]
    arguments = {"city": "Paris", "where": {"a": [1]}}
    many = [("get_weather", arguments)] if writing.is_single else [("get_weather", arguments)] * 2
    text = written(writing, many)
    first = next(
        at for at in range(len(text)) if said(read(form(name), [text[:at]], is_cut=True))[3]
    )
    for stop in range(first, len(text)):
        content, _, calls, unfinished = said(read(form(name), list(text[:stop]), is_cut=True))

        assert content == "", text[:stop]
        assert calls == many[: len(calls)]
        assert calls or unfinished


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<function=now>\n<parameter=a>\nx\n</param", '{"a": "x'),
        ("<function=now>\n<parameter=a>\nx\n</parameter>\n", '{"a": "x"'),
        ("<function=now>\n<parameter=a>\nx\n</parameter>\n</func", '{"a": "x"'),
    ],
)
def test_arguments_that_a_limit_cuts_hold_no_part_of_a_tag(text, arguments):
    for pieces in ([text], list(text)):
        [call] = assembled(read(form("qwen3_coder"), pieces, is_cut=True)).calls

        assert call.arguments == arguments


@EVERY_ANSWER
@pytest.mark.parametrize("is_cut", [False, True])
def test_damaged_answers_are_read_alike_however_they_are_cut(recorded, is_cut):
    chance = random.Random(recorded.text)
    form = form_of(recorded)
    for _ in range(25):
        text = list(recorded.text)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(text))
            text[at] = chance.choice(["", '"', "}", "<", "\\", text[at] * 2, chance.choice(text)])
        joined = "".join(text)

        whole = without_ids(read(form, [joined], is_cut=is_cut))

        assert without_ids(read(form, list(joined), is_cut=is_cut)) == whole, joined


@EVERY_ANSWER
def test_arguments_are_json_at_every_moment_that_a_call_is_said_to_end(recorded):
    events = read(form_of(recorded), list(recorded.text))

    pieces = [event.text for event in events if isinstance(event, Arguments)]
    assert all(pieces)
    starts = [event.index for event in events if isinstance(event, CallStart)]
    assert starts == list(range(len(starts)))
    assert all(a.index <= b.index for a, b in pairwise(e for e in events if hasattr(e, "index")))


@pytest.mark.parametrize("depth", [MAX_DEPTH - 2, MAX_DEPTH + 2])
def test_python_values_nest_so_deep_and_no_deeper(depth):
    text = f"[get_weather(where={'[' * depth}{']' * depth})]"

    _, _, calls, _ = said(read(form("pythonic"), [text]))

    assert bool(calls) == (depth < MAX_DEPTH)


def test_json_may_nest_deeper_than_the_interpreter_could():
    depth = 5_000
    text = HERMES_NOW.replace("{}", '{"a": ' + "[" * depth + "]" * depth + "}")

    events = read(form("hermes"), [text])

    assert [type(event) for event in events[-1:]] != [CallBroken]
    assert sum(len(e.text) for e in events if isinstance(e, Arguments)) == 2 * depth + 7


BIG = "x\\n<tool_call>" * 80_000  # a megabyte in JSON
LARGE = {
    "hermes": ('<tool_call>{"name": "now", "arguments": {"a": "', BIG, '"}}</tool_call>'),
    "hermes, spaces": ("", " " * 100_000, "x"),
    "hermes, half marks": ("", "<tool_cal" * 10_000, ""),
    "hermes, marks": ("", "<tool_call>" * 5_000, ""),
    "qwen3_coder": ("<function=now><parameter=a>", "</parameter> " * 5_000,
                    "</parameter></function>"),
    "qwen3_coder, objects": ("<function=get_weather><parameter=where>", " {" * 50_000,
                             "</parameter></function>"),
    "pythonic": ("[get_weather(city='", "\\'" * 20_000, "')]"),
    "llama3": ('{"name": "now", "parameters": {"a": "', BIG[:50_000], '"}}'),
    "deepseek_v31, half marks": ("", f"<{chr(0xFF5C)}" * 50_000, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_a_long_answer_takes_linear_time(name, monkeypatch):
    """Counted in characters that are looked at again, not in seconds."""
    begin, middle, end = LARGE[name]
    looked_at = []
    feed = Reader.feed

    def counted(self, text):
        feed(self, text)
        looked_at.append(len(self._text))

    monkeypatch.setattr(Reader, "feed", counted)
    text = begin + middle + end
    pieces = [text[at : at + 64] for at in range(0, len(text), 64)]

    events = read(form(name.partition(",")[0]), pieces)

    assert sum(looked_at) < 3 * len(text)
    shown = sum(len(getattr(event, "text", "")) for event in events)
    assert shown <= 2 * len(text)


def test_without_tools_there_is_nothing_to_look_for():
    assert AnswerFormat.of(DIALECTS["hermes"], None, {}) is None


def test_without_tools_calls_of_harmony_are_content():
    recorded = RECORDED["harmony"]
    form = AnswerFormat.of(DIALECTS["harmony"], None, {})

    content, reasoning, calls, _ = said(read(form, list(recorded.text)))

    assert (reasoning, calls) == ("They ask.", [])
    assert content == 'Let me look.{"city": "Paris"}'


def test_where_one_call_is_wanted_the_others_are_left_out():
    events = read(form("hermes", is_single=True), [f"{HERMES_PARIS}\n{HERMES_NOW}"])

    assert said(events)[2] == [("get_weather", {"city": "Paris"})]
