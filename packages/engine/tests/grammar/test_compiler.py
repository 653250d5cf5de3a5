import gc
from contextlib import suppress
from threading import Event

import numpy as np
import pytest
from byte_tokenizer import END, byte_tokenizer
from spaninfer_engine.errors import (
    EngineClosed,
    EngineUnavailable,
    InvalidGrammar,
    UnsupportedTask,
)
from spaninfer_engine.grammar import compiler as module
from spaninfer_engine.grammar.compiler import GrammarCompiler
from spaninfer_engine.request.structured import StructuredOutput
from spaninfer_engine.text.ids_only import wordless_tokenizer

pytest.importorskip("llguidance")

VOCAB = 256


def opened():
    return GrammarCompiler(byte_tokenizer(), VOCAB, [END])


@pytest.fixture(scope="module")
def compiler():
    return opened()


def chain(name, count):
    """Return a grammar of rules each of which holds the next one twice."""
    rules = [f"{name}{i}: {name}{i + 1} {name}{i + 1}" for i in range(count)]
    return "\n".join([f"start: {name}0", *rules, f'{name}{count}: "a"'])


def refs(count, join):
    defs = {f"d{i}": join(f"#/$defs/d{i + 1}") for i in range(count)}
    return {"$defs": defs | {f"d{count}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def deep(depth):
    return '{"items":' * depth + "{}" + "}" * depth


ATTACKS = {
    "repeated thrice": {"regex": "((a{1,1000}){1,1000}){1,1000}"},
    "long repeat": {"regex": "a{1,100000}"},
    "many stars": {"regex": "(.*a){30}"},
    "exponential automaton": {"regex": "(a|b)*a(a|b){30}"},
    "letters": {"regex": r"\p{L}{1,5000}"},
    "nested stars": {"regex": "(x+x+)+y"},
    "deep regex": {"regex": "(" * 5000 + "a" + ")" * 5000},
    "giant enum": {"json_schema": {"enum": [f"item {i}" for i in range(10_000)]}},
    "giant choice": {"choice": [f"choice {i}" for i in range(10_000)]},
    "deep schema": {"json_schema": deep(300)},
    "wide schema": {"json_schema": {"properties": {f"p{i}": {} for i in range(5000)}}},
    "wide, at the limit": {"json_schema": {"properties": {f"p{i}": {} for i in range(480)}}},
    "recursive": {"json_schema": {"$ref": "#"}},
    "remote": {"json_schema": {"$ref": "http://127.0.0.1:9/schema.json"}},
    "doubling properties": {
        "json_schema": refs(40, lambda to: {"properties": {"l": {"$ref": to}, "r": {"$ref": to}}})
    },
    "doubling allOf": {"json_schema": refs(30, lambda to: {"allOf": [{"$ref": to}] * 2})},
    "doubling anyOf": {"json_schema": refs(30, lambda to: {"anyOf": [{"$ref": to}] * 2})},
    "product of anyOf": {
        "json_schema": {
            "allOf": [
                {"anyOf": [{"properties": {f"p{i}": {"const": j}}} for j in range(4)]}
                for i in range(12)
            ]
        }
    },
    "many items": {"json_schema": {"type": "array", "minItems": 10**9}},
    "long string": {"json_schema": {"type": "string", "minLength": 10**9}},
    "patterns": {
        "json_schema": {
            "allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{9 + i}}}"} for i in range(6)]
        }
    },
    "doubling rules": {"grammar": chain("r", 40)},
    "doubling terminals": {"grammar": chain("R", 30)},
    "ambiguous": {"grammar": 'start: s\ns: s s | s s s | "a" |'},
    "deep gbnf": {"grammar": "root ::= " + "(" * 3000 + '"a"' + ")" * 3000},
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_compiled_or_refused_and_others_are_served_behind_it(compiler, name):
    with suppress(InvalidGrammar):
        compiler.compile(StructuredOutput(**ATTACKS[name]))

    assert first_tokens(compiler.compile(StructuredOutput(regex=f"after {name}"))) == [*b"a"]


def first_tokens(grammar):
    """Return the tokens with which an answer may begin."""
    bits = np.zeros(VOCAB // 8, np.uint8)
    grammar.matcher((END,), 0).fill(np.array([], np.int32), bits)
    return np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()


REFUSED = ("deep schema", "wide schema", "recursive", "remote", "deep gbnf")


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused_at_once(compiler, name):
    form = StructuredOutput(**ATTACKS[name])

    with pytest.raises(InvalidGrammar, match=f"^{form.kind}: "):
        compiler.compile(form)


def test_a_grammar_is_compiled_once_while_it_is_kept(compiler):
    one = compiler.compile(StructuredOutput(regex="kept"))

    assert compiler.compile(StructuredOutput(regex="kept")) is one
    assert compiler.compile(StructuredOutput(choice=["kept"])) is not one


@pytest.mark.usefixtures("own_garbage")
def test_the_cache_is_bounded_and_what_is_in_use_stays(monkeypatch):
    monkeypatch.setattr(module, "MAX_CACHED", 3)
    compiler = opened()
    kept = compiler.compile(StructuredOutput(regex="used"))
    for number in range(10):
        compiler.compile(StructuredOutput(regex=f"other{number}"))

    assert len(compiler._newest) == 3
    gc.collect()
    assert len(compiler._in_use) == 4
    assert compiler.compile(StructuredOutput(regex="used")) is kept


def test_the_cache_is_bounded_in_bytes_of_source(monkeypatch):
    monkeypatch.setattr(module, "MAX_CACHED_BYTES", 100)
    compiler = opened()
    for number in range(10):
        compiler.compile(StructuredOutput(regex=str(number) * 30))

    assert [len(source) for *_, source in compiler._newest] == [30, 30, 30]
    compiler.compile(StructuredOutput(regex="a" * 200))  # too large to keep, and no error
    assert compiler._num_bytes == sum(len(source) for *_, source in compiler._newest) == 0


def test_a_refusal_is_kept_and_raised_anew(compiler, monkeypatch):
    calls = []
    compile_one = compiler._compile
    monkeypatch.setattr(
        compiler, "_compile", lambda *given: calls.append(given) or compile_one(*given)
    )
    caught = []
    for _ in range(2):
        with pytest.raises(InvalidGrammar, match="unclosed group") as error:
            compiler.compile(StructuredOutput(regex="(refused"))
        caught.append(error.value)

    assert len(calls) == 1
    assert caught[0] is not caught[1]


def test_what_takes_too_long_is_refused_and_what_waits_behind_it_may_come_again(monkeypatch):
    compiler, go_on = opened(), Event()
    compile_one = compiler._compile
    monkeypatch.setattr(
        compiler, "_compile", lambda *given: (go_on.wait(60), compile_one(*given))[1]
    )
    monkeypatch.setattr(module, "COMPILE_S", 0.05)
    forms = [StructuredOutput(regex=f"slow{number}") for number in range(module.NUM_THREADS + 1)]
    for form in forms[:-1]:
        with pytest.raises(InvalidGrammar, match="to compile; make it smaller"):
            compiler.compile(form)
    with pytest.raises(EngineUnavailable, match="try again later"):
        compiler.compile(forms[-1])

    go_on.set()
    monkeypatch.setattr(module, "COMPILE_S", 60)
    assert compiler.compile(forms[-1]) is not None
    assert compiler.compile(forms[0]) is not None  # it came to an end meanwhile


def test_a_compiler_that_was_closed_says_so():
    compiler = opened()
    compiler.close()
    compiler.close()

    with pytest.raises(EngineClosed):
        compiler.compile(StructuredOutput(regex="a"))


@pytest.mark.parametrize(
    ("tokenizer", "end_ids", "problem"),
    [
        (wordless_tokenizer(VOCAB, [END]), [END], "no tokenizer files"),
        (byte_tokenizer(), [], "end-of-sequence"),
        (byte_tokenizer(), [VOCAB + 1], "end-of-sequence"),
    ],
)
def test_a_model_that_cannot_be_guided_says_why(tokenizer, end_ids, problem):
    with pytest.raises(UnsupportedTask, match=problem):
        GrammarCompiler(tokenizer, VOCAB, end_ids).compile(StructuredOutput(regex="a"))


def test_without_llguidance_the_way_to_it_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "spaninfer_engine.grammar.llguidance", None)

    with pytest.raises(UnsupportedTask, match="pip install llguidance"):
        opened().compile(StructuredOutput(regex="a"))
