"""Matchers over bytes, against what json and re say of the same texts."""

import json
import re
import threading

import numpy as np
import pytest
from byte_tokenizer import END, PAD, Bytes, byte_tokenizer
from spaninfer_engine.errors import InvalidGrammar
from spaninfer_engine.request.request import MaskJob
from spaninfer_engine.request.structured import StructuredOutput
from spaninfer_engine.text.tokenizer import Tokenizer

pytest.importorskip("llguidance")

from spaninfer_engine.grammar import llguidance
from spaninfer_engine.grammar.compiler import GrammarCompiler
from spaninfer_engine.grammar.llguidance import token_table
from spaninfer_engine.grammar.schema import MAX_PROPERTIES

VOCAB = 300  # more than the tokenizer has, and no multiple of 32
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def compiler():
    return GrammarCompiler(byte_tokenizer(), VOCAB, [END])


def allowed(matcher, token_ids):
    bits = np.full(-(-VOCAB // 32) * 4, 0xAA, np.uint8)
    matcher.fill(np.array(list(token_ids), np.int32), bits)
    return set(np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist())


def accepts(grammar, text):
    """Is every byte of the text allowed in its turn, and the end behind them?"""
    matcher, ids = grammar.matcher((END,), 0), list(text.encode())
    for position, token in enumerate([*ids, END]):
        if token not in allowed(matcher, ids[:position]):
            return False
    return True


@pytest.mark.parametrize(
    ("form", "taken", "refused"),
    [
        ({"json_object": True}, ['{"a":[1,{"b":null}]}', "{}"], ["[]", "1", "{", '{"a":}']),
        (
            {"json_schema": PERSON},
            ['{"name":"é","age":-3}', '{\n  "name": "Ann",\n  "age": 40\n}'],
            ['{"name":"Ann"}', '{"name":"Annabel","age":1}', '{"age":1,"name":"a"}',
             '{"name":"a","age":1.5}', '{"name":"a","age":1,"x":2}'],
        ),
        ({"regex": r"[A-Z]{2}-\d+"}, ["AB-1", "XY-0099"], ["AB-", "ab-1", "AB-1 "]),
        (
            {"choice": ["yes", "no", 'a "quoted" (x|y)*\n', "/ü&~"]},
            ["yes", "no", 'a "quoted" (x|y)*\n', "/ü&~"],
            ["ye", "yesno", "", "maybe", "a"],
        ),
        ({"grammar": 'start: "(" start ")" | "x"'}, ["x", "((x))"], ["((x)", "()", "x)"]),
        ({"grammar": 'root ::= "a" root | [0-9]'}, ["7", "aa7"], ["a", "77"]),
        (
            {
                "structural_tag": {
                    "structures": [{"begin": "<f=", "schema": {"type": "integer"}, "end": ">"}],
                    "triggers": ["<f"],
                }
            },
            ["text", "", "call <f=12> and <f=3>", "a < b"],
            ["<f=x>", "<f=1"],
        ),
    ],
    ids=["json_object", "json_schema", "regex", "choice", "lark", "gbnf", "structural_tag"],
)  # fmt: skip
def test_a_form_takes_its_texts_byte_by_byte_and_no_others(compiler, form, taken, refused):
    grammar = compiler.compile(StructuredOutput(**form))

    assert [text for text in taken if not accepts(grammar, text)] == []
    assert [text for text in refused if accepts(grammar, text)] == []


def test_random_walks_through_a_schema_end_in_its_instances(compiler):
    grammar = compiler.compile(StructuredOutput(json_schema=PERSON))
    rng = np.random.default_rng(5)
    for _ in range(30):
        matcher, ids = grammar.matcher((END,), 0), []
        while END not in (may := allowed(matcher, ids)):
            ids.append(int(rng.choice(sorted(may))))
            assert len(ids) < 1000
        value = json.loads(bytes(ids))
        assert list(value) == ["name", "age"]
        assert isinstance(value["age"], int)
        assert len(value["name"]) <= 5


def test_at_the_end_the_end_alone_is_allowed_and_special_tokens_never(compiler):
    grammar = compiler.compile(StructuredOutput(regex="(?s:.)[0-9]?"))
    matcher = grammar.matcher((END,), 0)

    first = allowed(matcher, [])
    assert not first & {END, PAD, *range(256, VOCAB)}
    assert ord("a") in first
    assert allowed(matcher, b"a") == {END, *b"0123456789"}
    assert allowed(matcher, b"a1") == {END}
    assert allowed(matcher, [*b"a1", END]) == {END}


def test_a_matcher_goes_back_to_fewer_tokens_and_on_with_others(compiler):
    matcher = compiler.compile(StructuredOutput(regex="ab(cd|xy)")).matcher((END,), 0)

    assert allowed(matcher, b"abc") == {ord("d")}
    assert allowed(matcher, b"ab") == set(b"cx")
    assert allowed(matcher, b"abx") == {ord("y")}
    assert allowed(matcher, []) == {ord("a")}
    assert allowed(matcher, [*b"abxy", END]) == {END}
    assert allowed(matcher, b"abxy") == {END}


LENGTHS = range(1, 35)


class Runs(Bytes):
    """Bytes, and behind them runs of letters with something at their end, or nothing."""

    texts = tuple("x" * n + end for end in ("", '"', "\\", '"x') for n in LENGTHS)

    def token_bytes(self, token_id):
        return self.texts[token_id - 256].encode() if token_id > 255 else bytes([token_id])


@pytest.mark.parametrize("num_before", range(21))
def test_of_a_string_that_has_a_largest_length_the_tokens_that_fit_are_allowed(num_before):
    vocab = 256 + len(Runs.texts)
    tokenizer = Tokenizer(Runs(vocab), (), eos_ids=[END])
    compiler = GrammarCompiler(tokenizer, vocab, [END])
    schema = {"type": "string", "maxLength": 20}
    matcher = compiler.compile(StructuredOutput(json_schema=schema)).matcher((END,), 0)
    bits = np.zeros(-(-vocab // 32) * 4, np.uint8)

    matcher.fill(np.array([*b'"', *b"x" * num_before], np.int32), bits)

    allowed = np.unpackbits(bits, bitorder="little")[256:vocab].astype(bool).tolist()
    room = 20 - num_before
    fit = [n <= room for n in LENGTHS]
    assert allowed == [*fit, *fit, *(n < room for n in LENGTHS), *(False for n in LENGTHS)]


def test_matchers_of_one_grammar_do_not_see_each_other(compiler):
    grammar = compiler.compile(StructuredOutput(regex="ab|cd"))
    one, other = grammar.matcher((END,), 0), grammar.matcher((END,), 0)

    assert allowed(one, b"a") == {ord("b")}
    assert allowed(other, b"c") == {ord("d")}


def test_ends_wait_for_min_tokens_as_long_as_something_else_is_possible(compiler):
    matcher = compiler.compile(StructuredOutput(regex="a{1,3}")).matcher((END, ord("z")), 10)

    assert allowed(matcher, b"a") == {ord("a")}
    assert allowed(matcher, b"aaa") == {END}


def test_a_token_that_the_grammar_does_not_allow_fails_the_matcher(compiler):
    matcher = compiler.compile(StructuredOutput(regex="ab")).matcher((END,), 0)

    with pytest.raises(InvalidGrammar, match="regex: it failed at token 1"):
        allowed(matcher, b"x")


@pytest.fixture
def threads(monkeypatch):
    """Four CPUs, whatever this machine has: masks of several matchers have three threads."""
    llguidance._threads.cache_clear()
    monkeypatch.setattr(llguidance, "usable_cpus", lambda: 4)
    assert llguidance._threads() is not None
    yield
    llguidance._threads.cache_clear()


@pytest.mark.parametrize("is_required", [True, False])
def test_as_many_properties_as_a_schema_may_have_can_be_followed(compiler, is_required):
    schema = {"properties": {f"p{number}": {"type": "integer"} for number in range(MAX_PROPERTIES)}}
    names = list(schema["properties"])
    form = StructuredOutput(json_schema=schema | ({"required": names} if is_required else {}))

    grammar = compiler.compile(form)

    asked = names if is_required else [names[0], names[-1]]
    assert accepts(grammar, json.dumps(dict.fromkeys(asked, 1)))


AMBIGUOUS = {
    "twice or thrice": 'start: s\ns: s s | s s s | "a" |',
    "left": 'start: start start start | start "a" | "a"',
    "behind nothing": 'start: s\ns: e s e "a" | "a"\ne: | "a" | e e',
    "both sides": 'start: s\ns: "a" s "a" | "a" s | s "a" | "a" |',
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_a_text_that_is_read_in_more_and_more_ways_is_refused_while_that_is_little_work(
    compiler, name
):
    """At 2,000 items, llguidance's own limit, it is 400 tokens, and 0.4 s for the last of them."""
    matcher = compiler.compile(StructuredOutput(grammar=AMBIGUOUS[name])).matcher((END,), 0)

    with pytest.raises(InvalidGrammar, match="Current row has 5"):
        any(ord("a") not in allowed(matcher, b"a" * num_tokens) for num_tokens in range(150))


def with_lexers(form, number=2):
    """Return a grammar, compiled by another compiler, that so many requests have."""
    grammar = GrammarCompiler(byte_tokenizer(), VOCAB, [END]).compile(StructuredOutput(**form))
    while grammar.reserve_lexer() and len(grammar._starts) < number:
        grammar.add_lexer()
    return grammar


def filled(matchers, answers, bits):
    """Return the masks that several matchers fill at once, or why one has none."""
    jobs = [
        MaskJob(matcher, np.array(list(ids), np.int32), len(matchers) - 1 - place)
        for place, (matcher, ids) in enumerate(zip(matchers, answers, strict=True))
    ]
    found = type(matchers[0]).begin_all(jobs, bits)
    return found() if callable(found) else found


@pytest.mark.usefixtures("threads")
def test_several_matchers_fill_at_once_what_each_fills_alone():
    forms = ({"json_schema": PERSON}, {"regex": "[a-z]{2,5}"}, {"choice": ["yes", "no"]})
    grammars = [with_lexers(form) for form in forms] * 4
    alone, together = (
        [grammar.matcher((END,), number % 4) for number, grammar in enumerate(grammars)]
        for _ in range(2)
    )
    rng, answers = np.random.default_rng(2), [[] for _ in grammars]
    bits, row = (
        np.zeros((14, -(-VOCAB // 32) * 4), np.uint8),
        np.zeros(-(-VOCAB // 32) * 4, np.uint8),
    )
    for step in range(40):
        found = filled(together, answers, bits)
        for matcher, ids, mask in zip(alone, answers, found, strict=True):
            np.testing.assert_array_equal(matcher.fill(np.array(ids, np.int32), row), mask)
            may = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
            ids.append(int(rng.choice(may)))  # also behind an end: a step is ahead
        if step % 11 == 10:  # computed again, from a token on
            for ids in answers:
                del ids[step % 3 + 1 :]


@pytest.mark.usefixtures("threads")
def test_many_masks_are_begun_and_computed_while_the_caller_goes_on(monkeypatch):
    """Threads that need the tokens of a forced text wait for it here, which the caller holds up."""
    grammar, may_go_on = with_lexers({"regex": "a(forced|text)"}), threading.Event()
    write = llguidance.Vocabulary.__call__

    def held(self, text):
        assert may_go_on.wait(120)
        return write(self, text)

    monkeypatch.setattr(llguidance.Vocabulary, "__call__", held)
    monkeypatch.setattr(llguidance.GuidanceMatcher, "_tokenize_forced", lambda _: None)
    matchers, bits = [grammar.matcher((END,), 0) for _ in range(9)], np.zeros((9, 40), np.uint8)
    jobs = [MaskJob(each, np.array([*b"af"], np.int32), row) for row, each in enumerate(matchers)]

    wait = llguidance.GuidanceMatcher.begin_all(jobs, bits)
    may_go_on.set()

    for mask in wait():
        assert np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist() == [ord("o")]


@pytest.mark.usefixtures("threads")
def test_masks_are_computed_without_threads_once_these_have_ended():
    llguidance._threads()._calls.shutdown()

    masks = filled(of_ab(9), [b"a"] * 9, np.zeros((9, -(-VOCAB // 32) * 4), np.uint8))

    assert len(masks) == 9
    for mask in masks:
        assert np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist() == [ord("b")]


def of_ab(number):
    """Return so many matchers of a grammar that allows "ab", with two lexers."""
    grammar = with_lexers({"regex": "ab"})
    return [grammar.matcher((END,), 0) for _ in range(number)]


@pytest.mark.usefixtures("threads")
def test_of_several_matchers_one_fails_alone():
    bits = np.zeros((9, -(-VOCAB // 32) * 4), np.uint8)

    first, failed, *others = filled(of_ab(9), [b"a", b"x", *[b""] * 7], bits)

    assert np.flatnonzero(np.unpackbits(first, bitorder="little")).tolist() == [ord("b")]
    for mask in others:
        assert np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist() == [ord("a")]
    assert isinstance(failed, InvalidGrammar)
    assert "it failed at token 1" in str(failed)


@pytest.mark.usefixtures("threads")
def test_where_computing_several_masks_fails_each_is_computed_alone():
    matchers, bits = of_ab(9), np.zeros((9, -(-VOCAB // 32) * 4), np.uint8)
    filled(matchers, [b""] * 9, bits)

    masks = filled(matchers, [b"a", [-1], *[b"a"] * 7], bits)  # no token has that number

    assert isinstance(masks.pop(1), Exception)
    for mask in masks:
        assert np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist() == [ord("b")]


@pytest.mark.usefixtures("threads")
def test_threads_do_not_wait_for_python(monkeypatch):
    written, write = [], llguidance.Vocabulary.__call__

    def noted(self, text):
        written.append(threading.get_ident())
        return write(self, text)

    monkeypatch.setattr(llguidance.Vocabulary, "__call__", noted)
    grammar = with_lexers({"regex": "a(forced|text)[0-9]"})
    bits = np.zeros((12, -(-VOCAB // 32) * 4), np.uint8)
    written.clear()  # by a thread that compiles

    filled([grammar.matcher((END,), 0) for _ in range(12)], [b"af", b"at", b""] * 4, bits)

    assert len(written) >= 8
    assert set(written) == {threading.get_ident()}


@pytest.mark.parametrize(("num_cpus", "num_lexers"), [(4, llguidance.MAX_LEXERS), (2, 1), (1, 1)])
def test_a_grammar_has_a_lexer_per_request_where_several_threads_compute_masks(
    num_cpus, num_lexers, monkeypatch
):
    monkeypatch.setattr(llguidance, "usable_cpus", lambda: num_cpus)
    compiler = GrammarCompiler(byte_tokenizer(), VOCAB, [END])
    form = StructuredOutput(regex="[a-z]+")
    grammar = compiler.compile(form)
    assert len(grammar._starts) == 1

    for _ in range(llguidance.MAX_LEXERS + 5):
        assert compiler.compile(form) is grammar

    compiler._threads.shutdown()
    assert len({id(start) for start in grammar._starts}) == num_lexers


def test_a_grammar_that_took_long_is_compiled_once(monkeypatch):
    monkeypatch.setattr(llguidance, "QUICK_S", 0.0)
    assert not with_lexers({"regex": "[a-z]+"}).reserve_lexer()


TAG = {"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}]}


@pytest.mark.parametrize(
    ("form", "before", "behind"),
    [
        ({"json_object": True}, "", ""),
        ({"json_schema": {}}, "", ""),
        ({"grammar": 'start: "%json {}: " %json {"type": "object"} "."'}, "%json {}: ", "."),
        ({"grammar": "start: /%json {1}/ x // %json {}\nx: %json\n{}"}, "%json ", ""),
        ({"structural_tag": {**TAG, "triggers": ["<f"]}}, "<f>", "</f>"),
    ],
    ids=["json_object", "json_schema", "lark", "lark, by rules", "structural_tag"],
)
def test_white_space_between_parts_of_json_is_bounded(compiler, form, before, behind):
    grammar = compiler.compile(StructuredOutput(**form))

    def takes(text):
        return accepts(grammar, f"{before}{text}{behind}")

    assert takes('{ "a" : 1, "b" : 2 }')
    assert takes(json.dumps({"a": [{"b": {"c": [1, 2]}}]}, indent=4))
    assert not takes('{  "a":1}')
    assert not takes('{\n\n"a":1}')
    assert not takes("{\n" + " " * 33 + '"a":1}')


def test_a_schema_that_says_what_stands_between_parts_is_left_alone(compiler):
    spaced = {"type": "object", "x-guidance": {"whitespace_flexible": False}}
    grammar = compiler.compile(StructuredOutput(grammar=f"start: %json {json.dumps(spaced)}"))

    assert accepts(grammar, '{"a":1}')
    assert not accepts(grammar, '{"a": 1}')


def test_what_is_no_json_behind_the_word_is_refused(compiler):
    with pytest.raises(InvalidGrammar):
        compiler.compile(StructuredOutput(grammar='start: %json {"type": '))


def test_all_bytes_of_a_tokenizer_are_in_the_table_and_none_for_ids_beyond():
    table = token_table(byte_tokenizer(), VOCAB)

    assert [table[i] for i in range(256) if i not in (END, PAD)] == [
        bytes([i]) for i in range(256) if i not in (END, PAD)
    ]
    assert table[END] == b"<|end|>"
    assert table[256:] == [b""] * 44
    assert token_table(byte_tokenizer(), 100) == table[:100]


def test_an_escaped_choice_is_matched_by_itself_alone(compiler):
    hostile = "".join(map(chr, range(32, 127)))
    grammar = compiler.compile(StructuredOutput(choice=[hostile, re.escape(hostile)]))

    assert accepts(grammar, hostile)
    assert accepts(grammar, re.escape(hostile))
    assert not accepts(grammar, hostile[:-1])
