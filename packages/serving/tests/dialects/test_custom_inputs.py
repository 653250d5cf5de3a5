"""Inputs of custom tools, in the format of every dialect, against json and re."""

import json
import re

import pytest
from byte_grammars import Accepts
from spaninfer_serving.dialects import grammar as grammars
from spaninfer_serving.dialects.custom_inputs import TextGrammar, input_schema
from spaninfer_serving.dialects.events import assembled
from spaninfer_serving.dialects.parser import AnswerFormat, AnswerParser
from spaninfer_serving.dialects.table import DIALECTS
from spaninfer_serving.dialects.writing import WRITINGS

EVERY_WRITING = pytest.mark.parametrize("name", WRITINGS)
AS_IT_IS = [name for name, writing in WRITINGS.items() if writing.text_argument]

SQL = TextGrammar("regex", r'(?i)select /\w+ "[^\n]*')
SUM = TextGrammar("lark", "start: NUMBER (OP NUMBER)*\nOP: /[-+*]/\nNUMBER: /[0-9]+/")
TEXTS = ['a "b"\n</x> \\é 😀 {}', "", '{"input": "x"}', 'SeLecT /tab "x y"', "1+22*3"]
FREE = TextGrammar("lark", 'start: "1" TEXT?\nTEXT: /(?s:.*)/')
WRONG = ['SeLecT tab "x y"', 'select /tab "\nx', "1+", "x"]


def form_of(name, grammar=None):
    tools, custom = {"run": input_schema(grammar)}, {"run": grammar}
    return AnswerFormat.of(DIALECTS[name], None, tools, custom=custom)


def written(name, text):
    """A call of the tool, made without its grammar."""
    writing, inputs = WRITINGS[name], {"input": text}
    given = (writing.text_argument or writing.argument).replace("$KEY", "input")
    given = given.replace("$TEXT", text).replace("$VALUE", json.dumps(text, ensure_ascii=False))
    given_json = json.dumps(inputs, ensure_ascii=False)
    call = writing.call.replace("$NAME", "run").replace("$JSON", given_json)
    return writing.begin + call.replace("$ARGUMENTS", given) + writing.end


def read(form, pieces):
    parser = AnswerParser(form)
    events = [event for piece in pieces for event in parser.push(piece)]
    return events + parser.end(is_cut=False)


@pytest.fixture(scope="module")
def accepts():
    """What says whether a grammar allows a text, and its end, as llguidance sees it."""
    return Accepts()


@EVERY_WRITING
@pytest.mark.parametrize("size", [1, 1000])
def test_the_input_is_the_text_however_the_answer_is_cut(name, size):
    for text in TEXTS:
        answer = written(name, text)

        events = read(form_of(name), [answer[i : i + size] for i in range(0, len(answer), size)])

        [call] = assembled(events).calls
        assert (call.name, call.arguments, call.is_custom) == ("run", text, True)
        assert call.is_complete


def is_sum(text):
    return re.fullmatch(r"[0-9]+([-+*][0-9]+)*", text) is not None


@EVERY_WRITING
@pytest.mark.parametrize("is_required", [True, False])
def test_an_input_is_held_to_its_grammar(name, is_required, accepts):
    allowed = [(None, lambda _: True), (SQL, re.compile(SQL.definition).fullmatch)]
    free = (FREE, lambda text: text.startswith("1"))
    for grammar, matches in allowed + ([(SUM, is_sum), free] if name in AS_IT_IS else []):
        made = grammars.calls_grammar(
            WRITINGS[name], form_of(name, grammar), {}, is_required=is_required
        )

        for text in TEXTS + WRONG:
            assert accepts(made, written(name, text)) == bool(matches(text)), (grammar, text)


@pytest.mark.parametrize(
    "text", ["é", "\U0001f600", "\ud83d", "a\ud83db", "\ud83d\n", "\x00\t/", "\\u0041"]
)
def test_escapes_are_characters(text):
    inputs = json.dumps({"input": text})
    assert inputs.isascii()

    events = read(form_of("llama3"), list(f'{{"name": "run", "parameters": {inputs}}}'))

    expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert assembled(events).calls[0].arguments == expected


@pytest.mark.parametrize("arguments", ["{}", '{"query": "x"}', '{"input": 5}'])
def test_arguments_of_another_form_are_no_less_than_what_the_model_wrote(arguments):
    events = read(form_of("llama3"), [f'{{"name": "run", "parameters": {arguments}}}'])

    assert assembled(events).calls[0].arguments == arguments


def test_functions_beside_a_custom_tool_keep_their_arguments():
    form = AnswerFormat.of(
        DIALECTS["hermes"], None, {"run": input_schema(None), "f": {}}, custom={"run": None}
    )
    calls = [{"name": name, "arguments": {"input": "x"}} for name in ("f", "run", "f")]
    text = "\n".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)

    found = assembled(read(form, list(text))).calls

    assert [call.is_custom for call in found] == [False, True, False]
    assert [call.arguments for call in found] == ['{"input": "x"}', "x", '{"input": "x"}']
