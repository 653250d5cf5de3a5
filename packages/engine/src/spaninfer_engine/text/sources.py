"""Opening a tokenizer: from a folder's files, or from the pieces that a container carried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer as Library

from spaninfer_engine.errors import CheckpointError, ConfigError
from spaninfer_engine.json_file import read_json
from spaninfer_engine.text import byte_bpe, qwen1
from spaninfer_engine.text.bytemap import to_alphabet
from spaninfer_engine.text.fallback import read_by_transformers
from spaninfer_engine.text.fast import FastCodec
from spaninfer_engine.text.gguf_rules import BY_GGUF_PRE
from spaninfer_engine.text.settings import TokenizerSettings, read_settings
from spaninfer_engine.text.special import SpecialToken
from spaninfer_engine.text.spm import SentencePieceCodec, as_model, with_control_pieces
from spaninfer_engine.text.tokenizer import Frame, Tokenizer
from spaninfer_engine.vocab import PieceType, TokenizerSource, Vocabulary, VocabularyKind

CL100K_SPECIAL = {
    "<|endoftext|>": 100257,
    "<|fim_prefix|>": 100258,
    "<|fim_middle|>": 100259,
    "<|fim_suffix|>": 100260,
    "<|endofprompt|>": 100276,
}


def open_tokenizer(
    source: TokenizerSource, *, end_ids: Iterable[int] = (), end_texts: Iterable[str] = ()
) -> Tokenizer:
    """Open a tokenizer; `end_ids` are ids that end an answer according to the model's configs, and
    `end_texts` tokens that do, if it has them.

    A source is a tokenizer's file, the pieces that a container carried, or a folder without any
    file that is read here, for which transformers is asked where it is installed.
    ConfigError for a kind that is not known, CheckpointError for damaged files.
    """
    if isinstance(source, Vocabulary):
        return _from_vocabulary(source, end_ids)
    folder = source if source.is_dir() else source.parent
    return _from_file(source, read_settings(folder), end_ids, end_texts)


def _from_file(
    source: Path, settings: TokenizerSettings, end_ids: Iterable[int], end_texts: Iterable[str]
) -> Tokenizer:
    name = source.name
    if ".model" in name or name.endswith(".spm"):
        return _from_sentencepiece(source, settings, end_ids)
    if name == "tokenizer.json":
        library = _read_library(source)
    elif name == "vocab.json":
        library = _read_vocab_json(source, settings)
    elif name.endswith(".tiktoken"):
        library = _read_tiktoken(source, settings)
    elif source.is_dir():
        library = read_by_transformers(source, "it has no tokenizer file that is read here")
    else:
        raise ConfigError(
            f"{source} has no tokenizer; supported are tokenizer.json, tokenizer.model, "
            "vocab.json with merges.txt, and *.tiktoken"
        )
    return _from_library(library, settings, end_ids, end_texts)


def _from_library(
    library: Library,
    settings: TokenizerSettings,
    end_ids: Iterable[int],
    end_texts: Iterable[str],
) -> Tokenizer:
    """A tokenizer of the tokenizers library, with what tokenizer_config.json says on top."""
    stated = settings.stated
    _demand_places(library, stated)
    library.add_tokens([byte_bpe.added(token) for token in stated])
    library.add_special_tokens(_undeclared(settings, library))
    codec = FastCodec(library)
    bos_id, eos_id = (
        _named_id(codec, settings, "bos_token"),
        _named_id(codec, settings, "eos_token"),
    )
    before, after = codec.added_by_default
    frame = _frame(settings, bos_id, eos_id, default=Frame(tuple(before), tuple(after)))
    frame = replace(frame, pair=codec.pair_frame)
    named = (eos_id, *map(codec.find_id, end_texts))
    ends = {*end_ids, *(token_id for token_id in named if token_id is not None)}
    special = {token.token_id: token for token in codec.special_tokens}
    special |= {token.token_id: token for token in stated if not token.is_text}
    return Tokenizer(codec, special.values(), frame=frame, bos_id=bos_id, eos_ids=ends)


def _demand_places(library: Library, stated: Iterable[SpecialToken]) -> None:
    """The library numbers new tokens by itself; the numbers must be those of the settings."""
    following = library.get_vocab_size(with_added_tokens=True)
    for token in sorted(stated, key=lambda token: token.token_id):
        found = library.token_to_id(token.text)
        if found is None:
            found, following = following, following + 1
        if found != token.token_id:
            raise CheckpointError(
                f"tokenizer_config.json gives {token.text!r} the id {token.token_id}, "
                f"but in the vocabulary it is {found}"
            )


def _from_sentencepiece(
    source: Path, settings: TokenizerSettings, end_ids: Iterable[int]
) -> Tokenizer:
    stated = settings.stated
    controls = [token.text for token in stated if not token.is_text]
    model = with_control_pieces(source.read_bytes(), controls, source=str(source))
    codec = SentencePieceCodec(
        model, source=str(source), prefixes_all=settings.flag("legacy") is not False
    )
    has_bos = not (settings.tokenizer_class or "").startswith("T5")
    bos_id = codec.bos_id if has_bos else None
    default = Frame(() if bos_id is None else (bos_id,), () if has_bos else (codec.eos_id or 1,))
    frame = _frame(settings, bos_id, codec.eos_id, default=default)
    ends = {*end_ids} | ({codec.eos_id} if codec.eos_id is not None else set())
    return _over_pieces(codec, stated, frame, bos_id, ends)


def _from_vocabulary(vocabulary: Vocabulary, end_ids: Iterable[int]) -> Tokenizer:
    bos_id, eos_id = vocabulary.bos_id, vocabulary.eos_id
    settings = TokenizerSettings(
        {"add_bos_token": vocabulary.add_bos, "add_eos_token": vocabulary.add_eos}
    )
    frame = _frame(settings, bos_id, eos_id, default=Frame())
    ends = {*end_ids} | ({eos_id} if eos_id is not None else set())
    if vocabulary.kind is VocabularyKind.SENTENCEPIECE_BPE:
        codec = SentencePieceCodec(as_model(vocabulary), source="the container's vocabulary")
        return _over_pieces(codec, [], frame, bos_id, ends)
    rule = byte_bpe.find_rule(BY_GGUF_PRE, vocabulary.pre, "tokenizer.ggml.pre")
    special = [
        SpecialToken(token_id, piece, is_text=kind is PieceType.USER_DEFINED)
        for token_id, (piece, kind) in enumerate(
            zip(vocabulary.pieces, vocabulary.types, strict=True)
        )
        if kind in (PieceType.CONTROL, PieceType.USER_DEFINED, PieceType.UNKNOWN)
    ]
    vocab = {piece: token_id for token_id, piece in enumerate(vocabulary.pieces)}
    merges = [byte_bpe.split_merge(line, "tokenizer.ggml.merges") for line in vocabulary.merges]
    source = "the container's vocabulary"
    fast = FastCodec(byte_bpe.build(vocab, merges, rule, special, source=source))
    return Tokenizer(fast, fast.special_tokens, frame=frame, bos_id=bos_id, eos_ids=ends)


def _over_pieces(
    codec: SentencePieceCodec,
    stated: Iterable[SpecialToken],
    frame: Frame,
    bos_id: int | None,
    eos_ids: Iterable[int],
) -> Tokenizer:
    """A tokenizer whose special tokens are the codec's control pieces and the stated ones."""
    special = {
        token_id: SpecialToken(token_id, codec.token_bytes(token_id).decode())
        for token_id in codec.control_ids
    }
    special |= {t.token_id: t for t in stated if not t.is_text or t.token_id >= codec.vocab_size}
    return Tokenizer(codec, special.values(), frame=frame, bos_id=bos_id, eos_ids=eos_ids)


def _frame(
    settings: TokenizerSettings, bos_id: int | None, eos_id: int | None, *, default: Frame
) -> Frame:
    """The ids around a text: add_bos_token and add_eos_token where stated, else the default."""
    before, after = default.before, default.after
    add_bos, add_eos = settings.flag("add_bos_token"), settings.flag("add_eos_token")
    if add_bos is not None:
        before = (bos_id,) if add_bos and bos_id is not None else ()
    if add_eos is not None:
        after = (eos_id,) if add_eos and eos_id is not None else ()
    return Frame(before, after)


def _read_library(path: Path) -> Library:
    try:
        return Library.from_file(str(path))
    except Exception as broken:  # the library raises bare Exception for any damage
        raise CheckpointError(f"{path} is not a tokenizer.json: {broken}") from broken


def _read_vocab_json(path: Path, settings: TokenizerSettings) -> Library:
    name = (settings.tokenizer_class or "none").removesuffix("Fast")
    if name not in byte_bpe.BY_CLASS:
        return read_by_transformers(path.parent, f"how {name} cuts words is not known here")
    rule = byte_bpe.BY_CLASS[name]
    merges = path.with_name("merges.txt")
    if not merges.is_file():
        raise CheckpointError(f"{path.parent} has vocab.json but no merges.txt")
    vocab: dict[str, int] = read_json(path)
    pairs = byte_bpe.read_merges(merges)
    return byte_bpe.build(vocab, pairs, rule, settings.stated, source=str(path))


def _read_tiktoken(path: Path, settings: TokenizerSettings) -> Library:
    rule = byte_bpe.find_rule(byte_bpe.BY_RANK_FILE, path.stem, str(path))
    ranks = byte_bpe.read_ranks(path)
    special: Sequence[SpecialToken] = settings.stated
    if not special and path.stem == "qwen":
        config = path.with_name("config.json")
        special = qwen1.special_tokens(len(ranks), read_json(config) if config.is_file() else ())
    elif not special and path.stem == "cl100k_base":
        special = [SpecialToken(token_id, text) for text, token_id in CL100K_SPECIAL.items()]
    vocab = {to_alphabet(piece): rank for piece, rank in ranks.items()}
    merges = byte_bpe.merges_from_ranks(ranks)
    return byte_bpe.build(vocab, merges, rule, special, source=str(path))


def _undeclared(settings: TokenizerSettings, library: Library) -> list[str]:
    """Named tokens that are in the vocabulary but were not yet declared special."""
    known = library.get_added_tokens_decoder().values()
    declared = {token.content for token in known}
    named = settings.named_texts
    return [t for t in named if t not in declared and library.token_to_id(t) is not None]


def _named_id(codec: FastCodec, settings: TokenizerSettings, name: str) -> int | None:
    """The id of bos_token or eos_token."""
    text = settings.token(name)
    return None if text is None else codec.find_id(text)
