"""The tokens of published tokenizers, as llguidance gets them, against what their libraries say."""

import base64
import json

import numpy as np
import pytest
import sentencepiece
from shared_data import shared_data
from spaninfer_engine.grammar import GrammarCompiler
from spaninfer_engine.request.structured import StructuredOutput
from spaninfer_engine.text import open_tokenizer
from tokenizers import Tokenizer as Library

pytest.importorskip("llguidance")

from spaninfer_engine.grammar.llguidance import Vocabulary, token_table

pytestmark = pytest.mark.model


def slow(name):
    return pytest.param(name, marks=pytest.mark.slow)


BYTE_LEVEL = (
    "minimind/tokenizer.json",
    slow("whisper-tiktoken/multilingual.tiktoken"),
    slow("qwen2/vocab.json"),
    slow("qwen1/qwen.tiktoken"),
    slow("cl100k/cl100k_base.tiktoken"),
)
SENTENCEPIECE = (
    "mistral/tokenizer.model.v1",
    "mistral/mistral_instruct_tokenizer_240323.model.v3",
    "sentencepiece-test/test_model.model",
)
TEXTS = (
    "Hello, world! 12345",
    '{"name": "Zoë", "tags": ["a\\n", null], "n": -1.5e3}',
    "  indented\n\tcode();  // naïve café",
    "汉字とかな 🧑‍🚀 Привет",
)


def table_of(name):
    tokenizer = open_tokenizer(shared_data(f"tokenizers/{name}"))
    return tokenizer, token_table(tokenizer, tokenizer.vocab_size)


def joined(table, ids):
    return b"".join(table[each] for each in ids)


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_bytes_of_byte_level_tokens_are_the_text(name):
    tokenizer, table = table_of(name)

    for text in TEXTS:
        assert joined(table, tokenizer.encode(text, add_special=False)).decode() == text


@pytest.mark.slow
def test_bytes_of_ranks_are_those_of_the_file():
    path = shared_data("tokenizers/cl100k/cl100k_base.tiktoken")
    _, table = table_of("cl100k/cl100k_base.tiktoken")

    for line in path.read_bytes().splitlines()[::97]:
        piece, rank = line.split()
        assert table[int(rank)] == base64.b64decode(piece)


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_bytes_of_sentencepiece_tokens_are_what_its_library_decodes(name):
    path = shared_data(f"tokenizers/{name}")
    library = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer, table = table_of(name)

    for text in TEXTS:
        ids = tokenizer.encode(text, add_special=False)
        if library.unk_id() in ids:  # a text that the model cannot write either
            continue
        assert joined(table, ids).decode().removeprefix(" ") == library.decode(ids)


def test_bytes_of_unigram_tokens_are_what_their_library_decodes():
    name = "t5-small/tokenizer.json"
    library = Library.from_file(str(shared_data(f"tokenizers/{name}")))
    tokenizer, table = table_of(name)

    for text in TEXTS[:1]:  # its vocabulary has no braces and no Chinese
        ids = tokenizer.encode(text, add_special=False)
        assert joined(table, ids).decode().removeprefix(" ") == library.decode(ids)


VALUE = {"name": "Zoë", "tags": ["汉字", "🧑"], "n": -15}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "n": {"type": "integer"},
    },
    "required": ["name", "tags", "n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("name", [slow("qwen2/vocab.json"), "mistral/tokenizer.model.v1"])
def test_a_schema_takes_an_instance_in_the_words_of_a_real_vocabulary(name):
    tokenizer, table = table_of(name)
    end_id = min(tokenizer.eos_ids or {tokenizer.vocab_size - 1})
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, [end_id])
    grammar = compiler.compile(StructuredOutput(json_schema=SCHEMA))
    text = json.dumps(VALUE, ensure_ascii=False)
    ids = answer_ids(tokenizer, table, text)

    assert joined(table, ids).decode() == text
    assert first_refused(grammar, ids, tokenizer.vocab_size) is None
    wrong = answer_ids(tokenizer, table, text.replace("-15", "1.5"))
    assert first_refused(grammar, wrong, tokenizer.vocab_size) is not None


def answer_ids(tokenizer, table, text):
    """Return the tokens of a text that does not begin the conversation: without a dummy space."""
    ids = tokenizer.encode("\n" + text, add_special=False)
    while not text.encode().startswith(table[ids[0]]) or not table[ids[0]].strip():
        ids = ids[1:]
    return ids


def first_refused(grammar, ids, vocab):
    """Return the position of the first token that is not allowed in its turn."""
    matcher = grammar.matcher((), 0)
    bits = np.zeros(-(-vocab // 32) * 4, np.uint8)
    for position, token in enumerate(ids):
        matcher.fill(np.array(ids[:position], np.int32), bits)
        if not bits[token // 8] >> token % 8 & 1:
            return position
    return None


@pytest.mark.parametrize("name", ["mistral/tokenizer.model.v1", "t5-small/tokenizer.json"])
def test_forced_texts_are_tokenized_without_a_dummy_space(name):
    tokenizer, table = table_of(name)
    wrapped = Vocabulary(tokenizer, table, [1])

    for text in ("hello", "the name of", "a"):
        assert joined(table, wrapped(text)).decode() == text
    assert wrapped(b"a\xff") in ([wrapped("a")[0]], wrapped("a") + wrapped(b"\xff"))
