"""Grammars of tool calls, against the parser of the same dialect."""

import json
import re

import pytest
from recorded_answers import TOOLS, read, said
from spaninfer_serving.dialects.grammar import calls_grammar
from spaninfer_serving.dialects.marked import Thinking
from spaninfer_serving.dialects.parser import AnswerFormat
from spaninfer_serving.dialects.table import DIALECTS
from spaninfer_serving.dialects.writing import WRITINGS

LOOK = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "where": {"$ref": "#/$defs/place"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}}},
}
OFFERED = {"look": LOOK, "now": {"type": "object", "properties": {}, "additionalProperties": False}}
PARIS = {"city": "Paris", "days": 3}
EVERY_WRITING = pytest.mark.parametrize("name", WRITINGS)


def written(writing, calls):
    """Calls as the grammar wants them, made without it."""
    texts = []
    for name, arguments in calls:
        given = [
            (writing.text_argument or writing.argument)
            .replace("$KEY", key)
            .replace("$TEXT", str(value))
            .replace("$VALUE", json.dumps(value))
            if isinstance(value, str)
            else writing.argument.replace("$KEY", key).replace("$VALUE", json.dumps(value))
            for key, value in arguments.items()
        ]
        text = writing.call.replace("$NAME", name).replace("$JSON", json.dumps(arguments))
        texts.append(text.replace("$ARGUMENTS", writing.comma.join(given)))
    return writing.begin + writing.separator.join(texts) + writing.end


def cases(name):
    once = [[("look", PARIS)], [("now", {})], [("look", PARIS | {"where": {"x": 1.5}})]]
    return once if WRITINGS[name].is_single else [*once, [("look", PARIS), ("now", {})]]


def test_every_dialect_but_one_is_written():
    assert set(DIALECTS) - set(WRITINGS) == {"gemma4"}
    assert set(WRITINGS) <= set(DIALECTS)


@EVERY_WRITING
def test_what_is_written_is_read_as_calls(name):
    form = AnswerFormat.of(DIALECTS[name], None, OFFERED)

    for calls in cases(name):
        events = read(form, list(written(WRITINGS[name], calls)))
        content, _, found, unfinished = said(events)
        assert (content.strip(), found, unfinished) == ("", calls, [])


@pytest.fixture(scope="module")
def accepts():
    """What says whether a grammar allows a text, and its end, as llguidance sees it."""
    guidance = pytest.importorskip("llguidance", reason="llguidance is not installed")
    controls = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "</think>", "<|message|>"]

    class Vocabulary:
        """Bytes, and some control tokens."""

        tokens = (b"", *(bytes([i]) for i in range(256)), *(text.encode() for text in controls))
        bos_token_id, eos_token_id = None, 0
        special_token_ids = (0, *range(257, 257 + len(controls)))

        def __call__(self, text):
            return [byte + 1 for byte in (text if isinstance(text, bytes) else text.encode())]

    ids = {text: 257 + number for number, text in enumerate(controls)}
    vocabulary = Vocabulary()
    tokenizer = guidance.LLTokenizer(
        guidance.TokenizerWrapper(vocabulary), n_vocab=len(vocabulary.tokens), eos_token=[0]
    )

    def check(grammar, text):
        matcher = guidance.LLMatcher(tokenizer, grammar, log_level=0)
        assert not matcher.is_error(), (matcher.get_error(), grammar)
        tokens = []
        for part in re.split("|".join(f"({re.escape(text)})" for text in controls), text):
            tokens += [ids[part]] if part in ids else vocabulary(part or "")
        return matcher.consume_tokens(tokens) and matcher.is_accepting()

    check.ids = ids
    return check


@EVERY_WRITING
def test_a_grammar_allows_what_is_written_and_no_other_function_or_answer(name, accepts):
    writing = WRITINGS[name]

    grammar = calls_grammar(writing, OFFERED, accepts.ids)

    for calls in cases(name):
        assert accepts(grammar, written(writing, calls))
    for wrong in ([("fly", {})], [("look", {"city": "Paris"})], [("now", {"a": 1})]):
        assert not accepts(grammar, written(writing, wrong))
    assert not accepts(grammar, "Hello")
    assert not accepts(grammar, "")


CITY = {"properties": {"city": {"type": "string"}}, "title": "what LangChain sends"}


@pytest.mark.parametrize(
    ("schema", "takes_more"),
    [
        (CITY, False),
        ({**CITY, "additionalProperties": True}, True),
        ({**CITY, "additionalProperties": {"type": "integer"}}, True),
        ({**CITY, "patternProperties": {"^da": {"type": "integer"}}}, True),
        ({"type": "object"}, True),
    ],
)
def test_a_function_that_lists_its_parameters_takes_no_others(accepts, schema, takes_more):
    writing = WRITINGS["hermes"]

    grammar = calls_grammar(writing, {"look": schema}, accepts.ids)

    assert accepts(grammar, written(writing, [("look", {"city": "Paris"})]))
    assert (
        accepts(grammar, written(writing, [("look", {"city": "Paris", "days": 3})])) is takes_more
    )


def test_one_call_is_one(accepts):
    writing = WRITINGS["hermes"]
    both = written(writing, [("now", {}), ("now", {})])

    assert accepts(calls_grammar(writing, OFFERED, accepts.ids), both)
    assert not accepts(calls_grammar(writing, OFFERED, accepts.ids, is_single=True), both)


@pytest.mark.parametrize(("is_thinking", "before"), [(False, "<think>\n"), (True, "")])
@pytest.mark.parametrize("are_controls", [False, True])
def test_an_answer_may_think_first(accepts, is_thinking, before, are_controls):
    thinking = Thinking(("<think>",), ("</think>",))
    ids = accepts.ids if are_controls else {}
    call = written(WRITINGS["llama3"], [("now", {})])

    grammar = calls_grammar(
        WRITINGS["llama3"], OFFERED, ids, thinking=thinking, is_thinking=is_thinking
    )

    if are_controls:
        assert accepts(grammar, f"{before}Hm.</think>\n\n{call}")
        assert accepts(grammar, call) != is_thinking
    else:
        assert "</think>" in grammar


def test_optional_arguments_of_python_calls_may_all_be_missing(accepts):
    loose = {"f": {"type": "object", "properties": {k: {"type": "integer"} for k in "abc"}}}
    grammar = calls_grammar(WRITINGS["pythonic"], loose, {})

    for text in ("[f()]", "[f(a=1)]", "[f(b=1)]", "[f(a=1, c=2)]", "[f(a=1, b=2, c=3)]"):
        assert accepts(grammar, text)
    assert not accepts(grammar, "[f(, a=1)]")


def test_the_schemas_of_the_recorded_tools_make_grammars_of_every_dialect(accepts):
    for writing in WRITINGS.values():
        assert not accepts(calls_grammar(writing, TOOLS, accepts.ids), "Hello")
