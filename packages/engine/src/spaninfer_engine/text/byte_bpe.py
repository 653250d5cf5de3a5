"""Byte-level BPE built from its parts: vocab.json with merges.txt, tiktoken ranks, GGUF pieces."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from spaninfer_engine.errors import CheckpointError, ConfigError
from spaninfer_engine.text.bytemap import to_alphabet
from spaninfer_engine.text.special import SpecialToken

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SYMBOLS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class WordRule:
    """The pre-tokenisation rule: how text is cut into words before merging.

    `pattern` None is GPT-2's; text is cut by the patterns of `before` first, each on its own.
    `whole_words` takes a word that is in the vocabulary as it is, even where the merges would not
    arrive there (so do tiktoken and Llama 3).
    """

    pattern: str | None = None
    composes: bool = False  # Unicode NFC first
    whole_words: bool = False
    before: tuple[str, ...] = ()


def _rule(digits: str, *, composes: bool = False, whole_words: bool = False) -> WordRule:
    pattern = "|".join((CONTRACTIONS, WORDS, digits, SYMBOLS_AND_SPACES))
    return WordRule(pattern, composes=composes, whole_words=whole_words)


GPT2 = WordRule()
QWEN = _rule(r"\p{N}", composes=True)
QWEN_TIKTOKEN = _rule(r"\p{N}", composes=True, whole_words=True)
CL100K = _rule(r"\p{N}{1,3}", whole_words=True)

BY_CLASS = {
    "GPT2Tokenizer": GPT2,
    "CodeGenTokenizer": GPT2,
    "Qwen2Tokenizer": QWEN,
    "Qwen3Tokenizer": QWEN,
}
"""Rules by the tokenizer_class of a folder with vocab.json and merges.txt."""

BY_RANK_FILE = {
    "qwen": QWEN_TIKTOKEN,
    "cl100k_base": CL100K,
    "gpt2": WordRule(whole_words=True),
    "multilingual": WordRule(whole_words=True),
}
"""Rules by the name of a .tiktoken file, which does not say itself how words are cut."""


def find_rule(rules: Mapping[str, WordRule], name: str, source: str) -> WordRule:
    """The rule of this name; ConfigError that names the known ones."""
    if name not in rules:
        raise ConfigError(
            f"{source}: pre-tokenizer {name!r} is unknown; known are {', '.join(rules)}; "
            "add a tokenizer.json to the model's folder"
        )
    return rules[name]


def build(
    vocab: Mapping[str, int],
    merges: Iterable[tuple[str, str]],
    rule: WordRule,
    special: Iterable[SpecialToken],
    *,
    source: str,
) -> Library:
    """A tokenizers.Tokenizer over pieces in the printable alphabet of bytes.

    CheckpointError, naming the source, where ids are none or merges need pieces that are not there.
    """
    special = list(special)
    pieces = dict(vocab) | {token.text: token.token_id for token in special}
    try:
        model = models.BPE(pieces, list(merges), ignore_merges=rule.whole_words, fuse_unk=False)
    except Exception as broken:  # the library raises bare Exception
        raise CheckpointError(f"{source} is no byte-level BPE: {broken}") from broken
    library = Library(model)
    if rule.composes:
        library.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.pattern is None)
    patterns = rule.before if rule.pattern is None else (*rule.before, rule.pattern)
    cuts = [pre_tokenizers.Split(Regex(each), behavior="isolated") for each in patterns]
    library.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level]) if cuts else byte_level
    library.decoder = decoders.ByteLevel()
    library.add_tokens([added(token) for token in special])
    return library


def added(token: SpecialToken) -> AddedToken:
    """The token in the library's own type."""
    return AddedToken(
        token.text,
        special=not token.is_text,
        normalized=False,
        lstrip=token.strips_left,
        rstrip=token.strips_right,
        single_word=token.whole_word,
    )


def read_merges(path: Path) -> list[tuple[str, str]]:
    """The pairs of a merges.txt, most urgent first."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as broken:
        raise CheckpointError(f"{path} is not text in UTF-8: {broken}") from broken
    pairs = [line for line in lines if line and not line.startswith("#version")]
    return [split_merge(line, str(path)) for line in pairs]


def split_merge(line: str, source: str) -> tuple[str, str]:
    """Left and right of a merge written with a space between."""
    left, space, right = line.partition(" ")
    if not space or " " in right:
        raise CheckpointError(f"{source}: {line!r} is not a pair of pieces")
    return left, right


def read_ranks(path: Path) -> dict[bytes, int]:
    """The pieces of a .tiktoken file, each line base64 and rank."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line:
            continue
        try:
            piece, rank = line.split()
            if piece != b"=":  # an empty piece, which Whisper's file has: no text contains it
                ranks[base64.b64decode(piece, validate=True)] = int(rank)
        except ValueError as broken:
            raise CheckpointError(f"{path} line {number} is not base64 and rank") from broken
    return ranks


def merges_from_ranks(ranks: Mapping[bytes, int]) -> list[tuple[str, str]]:
    """The merges that a rank file implies: any two pieces whose union is a piece, by its rank."""
    merges: list[tuple[int, int, int, bytes, int]] = []
    for piece, rank in ranks.items():
        for cut in range(1, len(piece)):
            left, right = ranks.get(piece[:cut]), ranks.get(piece[cut:])
            if left is not None and right is not None:
                merges.append((rank, left, right, piece, cut))
    merges.sort()
    return [(to_alphabet(piece[:cut]), to_alphabet(piece[cut:])) for *_, piece, cut in merges]
