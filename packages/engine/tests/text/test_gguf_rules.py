"""Pre-tokenizers named by GGUF files, against published tokenizers' patterns."""

from unittest.mock import patch

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from spaninfer_engine.text.byte_bpe import WordRule, build, merges_from_ranks
from spaninfer_engine.text.bytemap import from_alphabet, to_alphabet
from spaninfer_engine.text.gguf_rules import BY_GGUF_PRE, KIMI, O200K
from tiktoken_ext import openai_public
from vocabularies import ranked_pieces

ALPHABET = "aAbZé漢字かª²12 '\"sSllLL\n\r\t./!　€"

# words of this text by hand, from the patterns that the models' tokenizers state
WORDS = {
    "gpt-2": ("It's 2024 ok", ["It", "'s", " 2024", " ok"]),
    "qwen2": ("It'S 2024", ["It", "'S", " ", "2", "0", "2", "4"]),
    "llama3": ("It'S 2024", ["It", "'S", " ", "202", "4"]),
    "glm4": ("a12345", ["a", "123", "45"]),
    "deepseek-r1-qwen": ("a12", ["a", "1", "2"]),
    "gpt-4o": ("camelCase DON'T a/b\n", ["camel", "Case", " DON'T", " a", "/b", "\n"]),
    "tekken": ("camelCase's 12", ["camel", "Case", "'s", " ", "1", "2"]),
    "refact": ("a12 b", ["a", "1", "2", " b"]),
    "deepseek-v3": ("x1234 漢字です.py+= é\n", [
        "x", "123", "4", " ", "漢字です", ".py", "+=", " é", "\n"]),
    "deepseek-llm": ("Hello, wörld 12\n漢字 ¾", [  # its range :-~ holds a to z
        "Hello", ",", " w", "ö", "rld", " ", "12", "\n", "漢字", " ", "¾"]),
    "seed-coder": ("a 12!\n", ["a", " ", "1", "2", "!", "\n"]),
    "kimi-k2": ("汉字Case 1234", ["汉字", "Case", " ", "123", "4"]),
    "bloom": ("a b, c", ["a", " b", ",", " c"]),
}  # fmt: skip


def _words(rule: WordRule, text: str) -> list[str]:
    library = build({}, [], rule, [], source="test")
    cut = library.pre_tokenizer.pre_tokenize_str(text)
    return [from_alphabet(word).decode("utf-8") for word, _ in cut]


@pytest.mark.parametrize("name", WORDS)
def test_text_is_cut_where_the_tokenizer_s_patterns_say(name: str) -> None:
    text, words = WORDS[name]

    assert _words(BY_GGUF_PRE[name], text) == words


@pytest.mark.parametrize("name", BY_GGUF_PRE)
@settings(max_examples=50, deadline=None)
@given(text=st.text(ALPHABET, max_size=30))
def test_no_byte_of_a_text_is_lost(name: str, text: str) -> None:
    assert "".join(_words(BY_GGUF_PRE[name], text)) == text


RANKS = ranked_pieces()
MERGES = merges_from_ranks(RANKS)


@pytest.mark.parametrize(("rule", "pattern"), [(O200K, None), (KIMI, KIMI.pattern)])
@settings(max_examples=200, deadline=None)
@given(text=st.one_of(st.text(), st.text(ALPHABET, max_size=60)))
def test_pieces_are_those_of_tiktoken(rule: WordRule, pattern: str | None, text: str) -> None:
    """Of o200k by the pattern that OpenAI publishes."""
    truth = tiktoken.Encoding(
        "test", pat_str=pattern or _o200k(), mergeable_ranks=RANKS, special_tokens={}
    )
    ours = build({to_alphabet(p): r for p, r in RANKS.items()}, MERGES, rule, [], source="test")

    assert ours.encode(text).ids == truth.encode_ordinary(text)


def _o200k() -> str:
    """Return the pattern of o200k_base, without its pieces, which are on the internet."""
    with patch.object(openai_public, "load_tiktoken_bpe", lambda *_, **__: {}):
        pattern: str = openai_public.o200k_base()["pat_str"]
    return pattern
