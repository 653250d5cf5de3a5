"""The JSON-Schema test suite decides what is supported: what is accepted is accepted rightly.

A schema that is refused is refused with a reason. Of one that is accepted, every valid instance is
taken token by token and every invalid one is not, but for what is listed here.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from byte_tokenizer import END, byte_tokenizer
from shared_data import shared_data
from spaninfer_engine.errors import InvalidGrammar
from spaninfer_engine.grammar import GrammarCompiler
from spaninfer_engine.request.structured import StructuredOutput

pytest.importorskip("llguidance")
pytestmark = pytest.mark.model

SUITE = "text/json_schema_test_suite"
DRAFTS = ("draft2020-12", "draft7")
SAMPLE = ("additionalProperties", "anyOf", "const", "enum", "items", "maxLength", "minimum",
          "pattern", "prefixItems", "properties", "ref", "required", "type")  # fmt: skip

# Invalid instances that are taken, by file: what a grammar of bytes cannot count or look up.
TAKEN = {
    "date.json": "the 29th of February of years that have none",
    "date-time.json": "leap seconds at other minutes than the last of a day",
    "time.json": "leap seconds at other minutes than the last of a day",
    "hostname.json": "names of international domains whose letters may not stand together",
    "content.json": "contentEncoding and contentMediaType say what a text means: annotations",
    "ecmascript-regex.json": "the byte order mark is a space for ECMAScript",
    "ref.json": "draft 7: an $id beside a $ref is to be ignored",
}
# Valid instances that are refused: other ways to write a value, which no answer needs.
REFUSED = {
    "allOf.json": "properties come in one order: that of the schema",
    "const.json": "1.0 for 1, and properties in another order",
    "enum.json": "1.0 for 1",
    "type.json": "1.0 for an integer",
    "float-overflow.json": "1e308 for an integer",
    "format.json": "formats are enforced, not annotations",
    "email.json": "local parts in quotes, and addresses in brackets",
    "ipv6.json": "IPv4 in the last 32 bits",
    "ecmascript-regex.json": "the byte order mark is a space for ECMAScript",
    "ref.json": "draft 7: what stands beside a $ref is to be ignored",
}


def in_order(schema, value):
    """Return an instance with its properties in the order of the schema: the order of answers."""
    if isinstance(value, dict) and isinstance(schema, dict):
        known = schema.get("properties", {})
        names = [*(name for name in known if name in value), *(n for n in value if n not in known)]
        return {name: in_order(known.get(name, {}), value[name]) for name in names}
    return value


def takes(grammar, text):
    """Is every token allowed in its turn, and the end behind them?"""
    matcher, ids = grammar.matcher((END,), 0), [*text.encode(), END]
    bits = np.zeros(32, np.uint8)
    for position, token in enumerate(ids):
        matcher.fill(np.array(ids[:position], np.int32), bits)
        if not bits[token // 8] >> token % 8 & 1:
            return False
    return True


def sweep(paths):
    """Return counts of schemas and instances, and the files of instances that are judged wrong."""
    compiler = GrammarCompiler(byte_tokenizer(), 256, [END])
    counts, taken, refused = Counter(), set(), set()
    for path in paths:
        for group in json.loads(path.read_text()):
            schema = group["schema"]
            if isinstance(schema, bool):  # no object, and nobody's answer
                continue
            grammar = None
            with suppress(InvalidGrammar):
                grammar = compiler.compile(StructuredOutput(json_schema=schema))
            if grammar is None:
                counts["schemas refused"] += 1
                continue
            counts["schemas accepted"] += 1
            for test in group["tests"]:
                text = json.dumps(in_order(schema, test["data"]), ensure_ascii=False)
                is_taken = takes(grammar, text)
                counts["instances"] += 1
                if is_taken and not test["valid"]:
                    counts["invalid instances taken"] += 1
                    taken.add(path.name)
                if test["valid"] and not is_taken:
                    counts["valid instances refused"] += 1
                    refused.add(path.name)
    return counts, taken, refused


def files(draft, names=None):
    found = sorted(Path(shared_data(SUITE), draft).rglob("*.json"))
    return [path for path in found if names is None or path.stem in names]


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_sample_of_the_suite_is_judged_rightly(draft):
    counts, taken, refused = sweep([p for p in files(draft, SAMPLE) if p.parent.name == draft])

    assert counts["schemas accepted"] > 50
    assert taken <= {"ref.json"}
    assert refused <= REFUSED.keys()


@pytest.mark.slow
def test_the_whole_suite_is_judged_rightly_but_for_what_is_listed():
    counts, taken, refused = Counter(), set(), set()
    for draft in DRAFTS:
        some, more, others = sweep(files(draft))
        counts, taken, refused = counts + some, taken | more, refused | others

    print(dict(counts))
    assert taken == TAKEN.keys()
    assert refused == REFUSED.keys()
    assert counts["schemas accepted"] >= 400
