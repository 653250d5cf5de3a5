"""Tokenizer settings from a model's folder, beside the vocabulary, checked.

tokenizer_config.json, over what older folders say in special_tokens_map.json and
added_tokens.json. Keys that are not read here are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spaninfer_engine.errors import CheckpointError, shown
from spaninfer_engine.json_file import read_json
from spaninfer_engine.text.special import SpecialToken

NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
FLAGS = ("add_bos_token", "add_eos_token", "legacy")
SIDES = {"lstrip": "strips_left", "rstrip": "strips_right", "single_word": "whole_word"}
MAX_ID = 1 << 31  # ids are stored in 32 bits


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """TokenizerSettings of a tokenizer; `stated` are the tokens that they add, with their ids."""

    values: Mapping[str, Any] = field(default_factory=dict)
    stated: tuple[SpecialToken, ...] = ()

    @property
    def tokenizer_class(self) -> str | None:
        """The name of the class in transformers, where it is said."""
        name: str | None = self.values.get("tokenizer_class")
        return name

    def flag(self, name: str) -> bool | None:
        """A setting that is true or false; None where nothing is said."""
        value: bool | None = self.values.get(name)
        return value

    def token(self, name: str) -> str | None:
        """The text of bos_token and the like; None where there is none."""
        return _content(self.values.get(name)) or None

    @property
    def named_texts(self) -> list[str]:
        """The texts of all tokens that have a name."""
        return [text for name in NAMED if (text := self.token(name)) is not None]


def read_settings(folder: Path) -> TokenizerSettings:
    """The settings in a folder; CheckpointError with file, key and what is allowed."""
    values: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (path := folder / name).is_file():
            values |= _checked(path, read_json(path))
    if (decoder := values.get("added_tokens_decoder")) is not None:
        path = folder / "tokenizer_config.json"
        return TokenizerSettings(values, tuple(_stated(path, *each) for each in decoder.items()))
    if (path := folder / "added_tokens.json").is_file():
        return TokenizerSettings(
            values, tuple(_older(path, read_json(path), TokenizerSettings(values)))
        )
    return TokenizerSettings(values)


def _checked(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """The values; CheckpointError for the first that cannot be used."""
    for name in NAMED:
        _demand(path, name, values.get(name), _is_token, "a text, or an object with its content")
    for name in FLAGS:
        _demand(path, name, values.get(name), _is_flag, "true or false")
    _demand(path, "tokenizer_class", values.get("tokenizer_class"), _is_text, "a text")
    more = values.get("additional_special_tokens")
    _demand(path, "additional_special_tokens", more, _are_tokens, "a list of texts or tokens")
    decoder = values.get("added_tokens_decoder")
    _demand(path, "added_tokens_decoder", decoder, _is_table, "an object of tokens by their ids")
    return values


def _demand(
    path: Path, key: str, value: Any, is_allowed: Callable[[Any], bool], allowed: str
) -> None:
    if value is not None and not is_allowed(value):
        raise CheckpointError(f"{path}: {key} is {shown(value)}; allowed is {allowed}, or null")


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _is_text(value: Any) -> bool:
    """A text that has bytes in UTF-8: halves of surrogate pairs have none."""
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def _is_token(value: Any) -> bool:
    return _is_text(_content(value))


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_token, value))


def _content(value: Any) -> Any:
    """The text of a token, which is written as such or as an object."""
    return value.get("content") if isinstance(value, dict) else value


def _stated(path: Path, number: str, token: Any) -> SpecialToken:
    """A token of added_tokens_decoder."""
    place = f"added_tokens_decoder[{number!r}]"
    token_id = int(number) if number.isascii() and number.isdigit() and len(number) < 11 else -1
    if not 0 <= token_id < MAX_ID:
        raise CheckpointError(f"{path}: {place}: a token's id is a whole number below 2**31")
    if not isinstance(token, dict) or not _is_text(token.get("content")) or not token["content"]:
        allowed = "an object whose content is a text that is not empty"
        raise CheckpointError(f"{path}: {place} is {shown(token)}; allowed is {allowed}")
    for name in ("special", *SIDES):
        _demand(path, f"{place}.{name}", token.get(name), _is_flag, "true or false")
    sides = {ours: bool(token.get(theirs)) for theirs, ours in SIDES.items()}
    return SpecialToken(token_id, token["content"], is_text=not token.get("special"), **sides)


def _older(path: Path, ids: Mapping[str, Any], settings: TokenizerSettings) -> list[SpecialToken]:
    """The tokens of an added_tokens.json; those that have a name elsewhere steer the model."""
    more = settings.values.get("additional_special_tokens") or ()
    named = {*settings.named_texts, *map(_content, more)}
    for text, token_id in ids.items():
        is_id = isinstance(token_id, int) and not isinstance(token_id, bool)
        if not text or not _is_text(text) or not is_id or not 0 <= token_id < MAX_ID:
            raise CheckpointError(
                f"{path}: {text!r} is {shown(token_id)}; allowed is a text that is not empty, "
                "with a whole number below 2**31"
            )
    return [
        SpecialToken(token_id, text, is_text=text not in named) for text, token_id in ids.items()
    ]
