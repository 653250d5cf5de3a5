import json
import unicodedata

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import shared_data
from spaninfer_engine.errors import CheckpointError, ConfigError
from spaninfer_engine.text import open_tokenizer
from spaninfer_engine.text.byte_bpe import (
    BY_RANK_FILE,
    CL100K,
    build,
    find_rule,
    merges_from_ranks,
    read_merges,
    read_ranks,
)
from spaninfer_engine.text.bytemap import from_alphabet, to_alphabet
from spaninfer_engine.text.special import SpecialToken
from vocabularies import TEXT, ranked_pieces, write_tiktoken

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@settings(deadline=None)
@given(st.binary())
def test_the_alphabet_of_bytes_is_printable_and_reversible(data):
    piece = to_alphabet(data)

    assert piece.isprintable()
    assert " " not in piece
    assert from_alphabet(piece) == data


def test_the_alphabet_is_that_of_gpt_2():
    assert to_alphabet(b" the\n\x00") == "ĠtheĊĀ"


RANKS = ranked_pieces()
TRUTH = tiktoken.Encoding("small", pat_str=CL100K.pattern, mergeable_ranks=RANKS, special_tokens={})
OURS = build(
    {to_alphabet(p): r for p, r in RANKS.items()},
    merges_from_ranks(RANKS),
    CL100K,
    [],
    source="test",
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.text(" theca12'\n"), st.just(TEXT)))
def test_ranks_turned_into_merges_cut_text_as_tiktoken_does(text):
    assert OURS.encode(text).ids == TRUTH.encode_ordinary(text)


def test_special_tokens_get_their_ids_and_are_not_cut():
    special = SpecialToken(300, "<|end|>")
    library = build(
        {to_alphabet(p): r for p, r in RANKS.items()}, [], CL100K, [special], source="test"
    )

    assert library.encode("a<|end|>").ids == [97, 300]


def test_a_rank_file_is_read_line_by_line(tmp_path):
    assert read_ranks(write_tiktoken(tmp_path / "x.tiktoken")) == RANKS


@pytest.mark.parametrize("line", [b"IQ==", b"!!! 3", b"IQ== three"])
def test_a_damaged_rank_file_is_refused_naming_the_line(tmp_path, line):
    (tmp_path / "x.tiktoken").write_bytes(b"IQ== 0\n" + line)

    with pytest.raises(CheckpointError, match=r"x\.tiktoken line 2"):
        read_ranks(tmp_path / "x.tiktoken")


def test_merges_may_hold_a_number_sign_but_the_version_line_is_none(tmp_path):
    (tmp_path / "merges.txt").write_text("#version: 0.2\n# #\nĠ t\n", encoding="utf-8")

    assert read_merges(tmp_path / "merges.txt") == [("#", "#"), ("Ġ", "t")]


def test_a_merge_that_is_no_pair_is_refused(tmp_path):
    (tmp_path / "merges.txt").write_text("a b c\n")

    with pytest.raises(CheckpointError, match="'a b c' is not a pair"):
        read_merges(tmp_path / "merges.txt")


def test_an_unknown_rule_is_refused_naming_the_known_ones():
    with pytest.raises(ConfigError, match=r"'mystery'.*qwen, cl100k_base"):
        find_rule(BY_RANK_FILE, "mystery", "mystery.tiktoken")


@pytest.mark.model
@pytest.mark.parametrize(
    "name",
    [
        "qwen1/qwen.tiktoken",
        "cl100k/cl100k_base.tiktoken",
        "whisper-tiktoken/multilingual.tiktoken",
    ],
)
def test_real_rank_files_cut_text_as_tiktoken_does(name):
    path = shared_data("tokenizers", *name.split("/"))
    ours = open_tokenizer(path)
    rule = BY_RANK_FILE[path.stem]
    truth = tiktoken.Encoding(
        "real",
        pat_str=rule.pattern or GPT2_PATTERN,
        mergeable_ranks=read_ranks(path),
        special_tokens={},
    )

    def check(text: str) -> None:
        composed = unicodedata.normalize("NFC", text) if rule.composes else text
        assert ours.encode(text, add_special=False) == truth.encode_ordinary(composed)

    settings(max_examples=200, deadline=None)(given(st.text())(check))()
    settings(max_examples=100, deadline=None)(given(st.text("aA \n'sS1é日", max_size=60))(check))()
    for book in shared_data("text", "books").iterdir():
        check(book.read_text("utf-8")[5000:25000])


@pytest.mark.model
def test_vocab_and_merges_of_gpt_2_cut_text_as_tiktoken_does(tmp_path):
    source = shared_data("tokenizers", "gpt2")
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).symlink_to(source / name)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    ours = open_tokenizer(tmp_path / "vocab.json")
    vocab = json.loads((source / "vocab.json").read_text("utf-8"))
    ranks = {from_alphabet(p): r for p, r in vocab.items() if p != "<|endoftext|>"}
    truth = tiktoken.Encoding(
        "gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={}
    )

    for book in shared_data("text", "books").iterdir():
        text = book.read_text("utf-8")[5000:25000]
        assert ours.encode(text, add_special=False) == truth.encode_ordinary(text)
