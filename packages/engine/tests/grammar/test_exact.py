"""Numbers and counts in schemas: jsonschema judges what answers become, and no schema ends us."""

import json
import math
import re
import subprocess
import sys
from contextlib import suppress
from decimal import Decimal, localcontext
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from byte_tokenizer import END, byte_tokenizer
from spaninfer_engine.errors import InvalidGrammar
from spaninfer_engine.grammar import GrammarCompiler
from spaninfer_engine.grammar.schema import MAX_REFERENCED_DEPTH, MAX_RESOURCES
from spaninfer_engine.request.structured import StructuredOutput

pytest.importorskip("llguidance")

LOW, HIGH = -(2**63), 2**63 - 1
INTEGER, NUMBER = {"type": "integer"}, {"type": "number"}


@pytest.fixture(scope="module")
def compiler():
    return GrammarCompiler(byte_tokenizer(), 256, [END])


def allowed(matcher, ids):
    bits = np.zeros(32, np.uint8)
    matcher.fill(np.array(ids, np.int32), bits)
    return np.flatnonzero(np.unpackbits(bits, bitorder="little"))


def takes(grammar, text):
    matcher, ids = grammar.matcher((END,), 0), [*text.encode(), END]
    return all(token in allowed(matcher, ids[:at]) for at, token in enumerate(ids))


def walked(grammar, rng, most=60):
    """Return an answer by random tokens, or None where it became too long, or too large."""
    matcher, ids = grammar.matcher((END,), 0), []
    while len(ids) < most:
        token = int(rng.choice(allowed(matcher, ids)))
        if token == END:
            text = bytes(ids).decode()
            return None if re.search(r"[eE][+-]?\d{4}", text) else text
        ids.append(token)
    return None


def compiled(compiler, schema):
    return compiler.compile(StructuredOutput(json_schema=schema))


def judge(text, schema):
    """Raise unless an answer conforms; numbers are decimals, and have no rounding to hide in."""
    given, asked = (json.loads(each, parse_float=Decimal) for each in (text, json.dumps(schema)))
    is_old = isinstance(schema.get("exclusiveMinimum"), bool)
    cls = jsonschema.Draft4Validator if is_old else jsonschema.Draft202012Validator
    with localcontext(prec=200):
        assert not list(cls(asked).iter_errors(given)), (text, schema)


def chain(count, join):
    defs = {f"d{i}": join({"$ref": f"#/$defs/d{i + 1}"}) for i in range(count)}
    return {"$defs": defs | {f"d{count}": {}}, "$ref": "#/$defs/d0"}


LOWEST = INTEGER | {"minimum": LOW, "maximum": LOW}
DEADLY = {
    "the lowest integer": {"json_schema": LOWEST},
    "below it": {"json_schema": INTEGER | {"minimum": -1e300, "maximum": -1e19}},
    "exclusive": {
        "json_schema": INTEGER | {"exclusiveMinimum": LOW - 1, "exclusiveMaximum": LOW + 1}
    },
    "const": {"json_schema": {"const": LOW}},
    "const inside": {"json_schema": {"enum": [1, {"a": [LOW]}]}},
    "const of a float": {"json_schema": INTEGER | {"const": -1e300}},
    "in two parts": {"json_schema": {"allOf": [INTEGER, {"minimum": -1e30}, {"maximum": -1e19}]}},
    "of numbers": {
        "json_schema": {"allOf": [INTEGER, NUMBER | {"minimum": -1e30, "maximum": -1e19}]}
    },
    "where no schema is": {"json_schema": {"foo": [LOWEST], "$ref": "#/foo/0"}},
    "behind another": {"json_schema": {"$ref": "#/a", "a": {"$ref": "#/~1"}, "/": LOWEST}},
    "behind an $id": {"json_schema": {"$defs": {"x": {"$id": "http://a/x", "y": LOWEST}},
                                      "$ref": "http://a/x#/y"}},
    "in a value": {"json_schema": {"$ref": "#/$defs/a/const", "$defs": {"a": {"const": LOWEST}}}},
    "in Lark": {"grammar": f"start: %json {json.dumps(LOWEST)}"},
    "in a tag": {"structural_tag": {"structures": [{"begin": "<f", "schema": LOWEST, "end": ">"}],
                                    "triggers": ["<f"]}},
    "references": {"json_schema": chain(MAX_REFERENCED_DEPTH - 2, lambda ref: ref)},
    "too many": {"json_schema": chain(5000, lambda ref: ref)},
    "properties": {"json_schema": chain(3500, lambda ref: {"properties": {"x": ref}})},
    "alternatives": {"json_schema": chain(900, lambda ref: {"anyOf": [ref, {"type": "null"}]})},
    "counts": {"json_schema": {"minLength": 10**30, "minItems": 2**64, "minProperties": 2**63}},
    "repeats": {"regex": "a{4294967295}{4294967295}"},
}  # fmt: skip
TRY = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from byte_tokenizer import END, byte_tokenizer
from spaninfer_engine.errors import InvalidGrammar
from spaninfer_engine.grammar import GrammarCompiler
from spaninfer_engine.request.structured import StructuredOutput
compiler = GrammarCompiler(byte_tokenizer(), 256, [END])
for name, form in json.load(sys.stdin).items():
    print(name, flush=True)
    try:
        compiler.compile(StructuredOutput(**form))
    except InvalidGrammar:
        pass
print("alive", flush=True)
os._exit(0)
"""


def test_no_schema_ends_the_process():
    fixtures = str(Path(sys.modules["byte_tokenizer"].__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", TRY, fixtures],
        input=json.dumps(DEADLY),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.stdout.split("\n")[-2:] == ["alive", ""], (done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (LOWEST, "$.maximum"),
        (INTEGER | {"minimum": 2**53 + 1}, "$.minimum"),
        (INTEGER | {"exclusiveMaximum": 2**53 + 2}, "$.exclusiveMaximum"),
        (INTEGER | {"exclusiveMinimum": 2**53}, "$.exclusiveMinimum"),
        ({"items": NUMBER | {"maximum": -(2**53) - 1}}, "$.items.maximum"),
        (NUMBER | {"maximum": 1e300}, "$.maximum"),
        (NUMBER | {"minimum": 1e-300}, "$.minimum"),
        ({"enum": [1, {"a": [2**53 + 1]}]}, "$.enum[1].a[0]"),
        ({"const": 996964.8903871987}, "$.const"),
        (INTEGER | {"const": 2**63}, "$.const"),
        (NUMBER | {"multipleOf": 0.57}, "$.multipleOf"),
        (NUMBER | {"multipleOf": 0}, "$.multipleOf"),
        (NUMBER | {"multipleOf": 10**400}, "$.multipleOf"),
        ({"allOf": [{"multipleOf": 65537}, {"multipleOf": 65539}]}, "$.allOf[1].multipleOf"),
        ({"$ref": "#/$defs/a", "multipleOf": 1e-5, "$defs": {"a": {"multipleOf": 100003}}},
         "$.$defs.a.multipleOf"),
        ({"minItems": 2**64}, "$.minItems"),
        ({"minLength": 10**30}, "$.minLength"),
        ({"anyOf": [{"required": ["a", "a"], "minProperties": 3}]}, "$.anyOf[0].minProperties"),
        ({"a": {"$ref": "#/const"}, "const": {}, "$ref": "#/a"}, "$.const"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_by_its_place(compiler, schema, place):
    with pytest.raises(InvalidGrammar) as refused:
        compiled(compiler, schema)

    assert str(refused.value).startswith(f"json_schema: {place} ")


def test_schemas_with_an_id_are_bounded(compiler):
    schema = {"$defs": {f"d{i}": {"$id": f"http://a/{i}"} for i in range(MAX_RESOURCES + 1)}}

    with pytest.raises(InvalidGrammar, match=r"\$id or \$anchor; at most"):
        compiled(compiler, schema)


OPEN = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
EDGES = [0, 1, -1, 3, 0.5, -0.5, 0.0001, -0.0001, 1.5, 0.29, 10**15, -(10**15), 2**53, -(2**53)]


def random_bounds(rng):
    """Return a schema of numbers with bounds that are close to each other, or far, or one alone."""
    low, high = sorted(float(each) if rng.random() < 0.5 else each for each in rng.choice(EDGES, 2))
    schema = dict(NUMBER if rng.random() < 0.6 else INTEGER)
    for side, value in (("minimum", low), ("maximum", high)):
        if rng.random() < 0.8:
            schema[OPEN[side] if rng.random() < 0.5 else side] = value
    if rng.random() < 0.3:
        schema["multipleOf"] = float(rng.choice([1, 2, 0.5, 0.25]))
    if rng.random() < 0.3:  # said in two parts
        keys = list(schema)[1:]
        return {"type": schema["type"], "allOf": [{key: schema[key]} for key in keys]}
    return schema


@pytest.mark.parametrize("seed", range(8))
def test_random_answers_are_within_random_bounds(compiler, seed):
    rng, num_judged = np.random.default_rng(seed), 0
    for _ in range(40):
        schema = random_bounds(rng)
        with suppress(InvalidGrammar):
            grammar = compiled(compiler, schema)
            for _ in range(4):
                if (text := walked(grammar, rng)) is not None:
                    judge(text, schema)
                    num_judged += 1
    assert num_judged > 30


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        (INTEGER | {"minimum": LOW, "maximum": HIGH},
         ["0", str(HIGH), str(-HIGH + 1023)], [str(HIGH + 1), str(LOW - 1)]),
        ({"type": ["integer", "null"], "minimum": 0, "maximum": 2**64 - 1},
         ["0", str(HIGH), "null"], ["-1", str(2**64)]),
        (INTEGER | {"minimum": -1e300, "maximum": 1e300}, ["-5", "5"], ["1.5"]),
        (INTEGER | {"minimum": 10**18}, [str(10**18), str(HIGH)], [str(10**18 - 1)]),
        (INTEGER | {"maximum": -(10**18)}, [str(-(10**18))], [str(1 - 10**18), "5"]),
        (INTEGER | {"exclusiveMaximum": HIGH}, [], [str(HIGH)]),
        ({"const": HIGH}, [str(HIGH)], [str(HIGH - 1)]),
        (NUMBER | {"exclusiveMinimum": 0, "exclusiveMaximum": 0.0001},
         ["0.00005"], ["0", "0.0", "0.0001"]),
        (NUMBER | {"minimum": -0.5, "exclusiveMaximum": 0}, ["-0.25"], ["0", "-0", "-0.0"]),
        (NUMBER | {"minimum": 3, "exclusiveMinimum": True, "maximum": 3.5}, ["3.1"], ["3", "3.0"]),
        ({"allOf": [NUMBER, {"exclusiveMinimum": 0}, {"maximum": 0.5}]}, ["0.1"], ["0", "0.6"]),
        (NUMBER | {"multipleOf": 0.01, "minimum": 0.29, "maximum": 0.29},
         ["0.29"], ["0.28", "0.3"]),
        (NUMBER | {"multipleOf": 0.01, "minimum": -0.29, "maximum": -0.285}, ["-0.29"], ["-0.28"]),
        (NUMBER | {"multipleOf": 0.5, "exclusiveMinimum": 0, "maximum": 0.5},
         ["0.5"], ["0", "0.0"]),
        (INTEGER | {"multipleOf": 0.3, "minimum": 1, "maximum": 5}, ["3"], ["0", "1", "4"]),
        ({"type": "string", "maxLength": 2**64}, ['"abc"'], ["1"]),
        ({"items": {"type": "null"}, "type": "array", "maxItems": 2**63}, ["[null,null]"], ["[1]"]),
    ],
)  # fmt: skip
def test_numbers_are_kept(compiler, schema, taken, refused):
    for text in taken:
        judge(text, schema)
    for text in refused:
        with pytest.raises(AssertionError):
            judge(text, schema)
    try:
        grammar = compiled(compiler, schema)
    except InvalidGrammar:
        assert not taken
        return

    assert [text for text in taken if not takes(grammar, text)] == []
    assert [text for text in refused if takes(grammar, text)] == []


def test_of_a_const_all_digits_are_kept_or_it_is_refused(compiler):
    rng, num_kept = np.random.default_rng(3), 0
    for number in (float(f"{each:.16e}") for each in rng.random(200) * 100):
        with suppress(InvalidGrammar):
            assert takes(compiled(compiler, {"const": number}), repr(number))
            num_kept += 1
    assert 150 < num_kept < 200


@pytest.mark.parametrize("step", [0.01, 0.1, 0.05, 0.001, 0.3, 7, 1.1])
def test_each_multiple_is_found_between_itself_and_itself(compiler, step):
    """Where it is refused, an answer would be none; it was, for 0.29."""
    for count in (1, 3, 29, 57, -29, 113):
        value = float(repr(round(count * step, 6)))
        schema = NUMBER | {"multipleOf": step, "minimum": value, "maximum": value}
        text = repr(int(value) if value == math.floor(value) else value)
        assert takes(compiled(compiler, schema), text), schema


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {"^a[0-2]$": {"const": 5}}, "minProperties": 2, "maxProperties": 2},
        {"additionalProperties": {"const": 5}, "minProperties": 2},
        {"required": ["a"], "minProperties": 3},
        {"allOf": [{"minProperties": 2}, {"patternProperties": {"^a": {}}}]},
    ],
)
def test_names_that_may_repeat_do_not_meet_a_least_number_of_them(compiler, schema):
    with pytest.raises(InvalidGrammar, match=r"minProperties is \d; at most \d, the number of"):
        compiled(compiler, {"type": "object"} | schema)


def test_a_least_number_of_names_is_met_by_those_required_and_one(compiler):
    schema = {
        "type": "object",
        "properties": {"a": {"const": 1}},
        "required": ["a", "b"],
        "additionalProperties": {"const": 2},
        "minProperties": 3,
    }
    grammar = compiled(compiler, schema)
    repeats = ['{"a":1,"b":2,"a":2}', '{"a":1,"b":2,"b":2}', '{"a":1,"b":2,"\\u0061":2}']

    assert takes(grammar, '{"a":1,"b":2,"c":2}')
    assert [text for text in ['{"a":1,"b":2}', *repeats] if takes(grammar, text)] == []


def test_a_listed_name_is_not_written_with_escapes_beside_itself(compiler):
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {}}
    grammar = compiled(compiler, schema)

    assert takes(grammar, '{"a":1,"b\\n":2}')
    assert not takes(grammar, '{"a":1,"\\u0061":2}')
