"""Grammars of tool calls, against the parser of the same dialect."""

import pytest
from byte_grammars import Accepts
from recorded_answers import TOOLS, read, said
from spaninfer_serving.dialects import grammar as grammars
from spaninfer_serving.dialects.marked import Thinking
from spaninfer_serving.dialects.parser import AnswerFormat
from spaninfer_serving.dialects.table import DIALECTS
from spaninfer_serving.dialects.writing import WRITINGS
from written_calls import written

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


def calls_grammar(writing, tools, control_ids, *, is_required=True, **options):
    """The grammar for tools, in the layout of the writing's dialect."""
    name = next(name for name, each in WRITINGS.items() if each is writing)
    thinking = options.pop("thinking", None)
    form = AnswerFormat.of(DIALECTS[name], thinking, tools, **options)
    return grammars.calls_grammar(writing, form, control_ids, is_required=is_required)


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
    controls = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "</think>", "<|message|>"]
    return Accepts(*controls)


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


# What an answer says in front of a call where it is more than the text.
FRAMES = {
    "harmony": "<|channel|>analysis<|message|>{}<|end|><|start|>assistant",
    "functionary_v32": "all\n{}>>>",
}
LAST = {"harmony": "<|channel|>final<|message|>{}", "functionary_v32": "all\n{}"}
# Dialects in which a call is what an answer begins with.
AT_START = {"llama3", "llama4", "pythonic"}


def said_before(name, text, calls=()):
    """An answer with a text, and calls behind it."""
    if not calls:
        return LAST.get(name, "{}").format(text)
    return FRAMES.get(name, "{}").format(text) + written(WRITINGS[name], calls)


@EVERY_WRITING
def test_an_answer_may_say_anything_and_call_what_is_allowed_alone(name, accepts):
    allowed = {"look": LOOK}
    once, wrong = [("look", PARIS)], [("now", {})]

    grammar = calls_grammar(WRITINGS[name], allowed, accepts.ids, is_required=False)

    for text in ("", "Hello.", "1 < 2 > 0, <tool, [T: é\n\n```python\n>>", "Call now()"):
        assert accepts(grammar, said_before(name, text)), text
    assert accepts(grammar, written(WRITINGS[name], once))
    assert not accepts(grammar, written(WRITINGS[name], wrong))
    if name in AT_START:
        assert not accepts(grammar, "  " + written(WRITINGS[name], wrong))
    else:
        assert accepts(grammar, said_before(name, "Wait.\n", once))
        assert not accepts(grammar, said_before(name, "Wait.\n", wrong))
    form = AnswerFormat.of(DIALECTS[name], None, OFFERED)
    for calls in (once, wrong):  # that what was refused is a call, as the parser sees it
        assert said(read(form, list(written(WRITINGS[name], calls))))[2] == calls


@EVERY_WRITING
def test_every_mark_that_opens_calls_leads_to_an_allowed_one(name, accepts):
    layout = DIALECTS[name].layout
    grammar = calls_grammar(WRITINGS[name], {"look": LOOK}, accepts.ids, is_required=False)

    for mark in getattr(layout, "opens", ()):
        assert not accepts(grammar, f"Hm. {mark} and more")


def test_an_answer_with_one_call_at_most_goes_on_with_text(accepts):
    hermes = WRITINGS["hermes"]
    call = written(hermes, [("now", {})])

    many = calls_grammar(hermes, OFFERED, accepts.ids, is_required=False)
    one = calls_grammar(hermes, OFFERED, accepts.ids, is_required=False, is_single=True)

    for grammar in (many, one):
        assert accepts(grammar, f"Wait. {call} Done.")
    assert accepts(many, f"{call}\nAnd {call}")
    assert not accepts(one, f"{call}\nAnd {call}")


@pytest.mark.parametrize("is_thinking", [False, True])
def test_an_answer_may_think_say_and_call(accepts, is_thinking):
    hermes, thinking = WRITINGS["hermes"], Thinking(("<think>",), ("</think>",))
    call, fly = (written(hermes, [(name, {})]) for name in ("now", "fly"))
    begun = "" if is_thinking else "<think>"

    grammar = calls_grammar(
        hermes,
        OFFERED,
        accepts.ids,
        is_required=False,
        thinking=thinking,
        is_thinking=is_thinking,
    )

    for rest in ("", "Yes.", f"Wait.\n{call}", call):
        assert accepts(grammar, f"{begun}Hm.</think>\n\n{rest}"), rest
    assert not accepts(grammar, f"{begun}Hm.</think>\n\n{fly}")
    assert accepts(grammar, "Yes.") != is_thinking


def test_marks_around_content_are_allowed_where_they_are_control_tokens(accepts):
    marks = {"<|START_RESPONSE|>": 257, "<|END_RESPONSE|>": 258}

    grammar = calls_grammar(WRITINGS["command_r7b"], OFFERED, marks, is_required=False)

    for ids in ([257], [257, 66, 258], [66, 258, 257, 66, 258]):
        assert accepts.tokens(grammar, ids), ids
    assert not accepts.tokens(grammar, [259])


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


CITY_ALONE = {"type": "object", **CITY}


@pytest.mark.parametrize(
    "schema",
    [
        {**CITY, "type": ["object", "null"]},
        {"anyOf": [{"type": "string"}, CITY_ALONE]},
        {"oneOf": [{"type": "null"}, CITY_ALONE]},
        {"allOf": [CITY_ALONE]},
        {"$ref": "#/$defs/city", "$defs": {"city": {"anyOf": [CITY_ALONE, {"type": "array"}]}}},
    ],
)
def test_arguments_are_an_object_whatever_else_a_schema_allows(accepts, schema):
    writing = WRITINGS["hermes"]
    call = written(writing, [("look", {"city": "Paris"})])

    grammar = calls_grammar(writing, {"look": schema}, accepts.ids)

    assert accepts(grammar, call)
    for other in ('"Paris"', "null", "[]"):
        assert not accepts(grammar, call.replace('{"city": "Paris"}', other)), other


NODE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}},
    "required": ["city"],
}


@EVERY_WRITING
def test_arguments_may_be_described_behind_a_reference(name, accepts):
    """As pydantic writes it for a model that holds itself."""
    writing, tools = WRITINGS[name], {"look": {"$ref": "#/$defs/Node", "$defs": {"Node": NODE}}}
    whole = [("look", {"city": "5", "next": {"city": "Rome"}})]

    grammar = calls_grammar(writing, tools, accepts.ids)

    assert accepts(grammar, written(writing, whole))
    assert not accepts(grammar, written(writing, [("look", {})]))
    form = AnswerFormat.of(DIALECTS[name], None, tools)
    assert said(read(form, [written(writing, whole)]))[2] == whole


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
