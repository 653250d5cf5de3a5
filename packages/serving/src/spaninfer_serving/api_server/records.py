"""Values of the engine as plain ones, and back: options, sampling parameters, arrays, errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import spaninfer_engine
from msgspec import Raw, Struct, msgpack
from numpy.typing import NDArray
from spaninfer_engine import (
    CacheMap,
    EngineConfig,
    EngineError,
    EngineStats,
    GroupMap,
    InvalidSampling,
    RunningSequence,
    SamplingParams,
    StructuredOutput,
    TokenLogprob,
)
from spaninfer_engine.serving import (
    Levels,
    LogprobAt,
    MediaItem,
    Mixture,
    PromptMedia,
    Text,
    TokenLogprobs,
    TowerInput,
    gathered,
    shown,
)

from spaninfer_serving.wire.errors import Problem

T = TypeVar("T")
Array = tuple[str, list[int], bytes]
Entries = tuple[list[int], list[Array]]
"""Log-probabilities of tokens: how many most likely ones each has, and the arrays of all."""


class Fault(Struct, array_like=True, frozen=True):
    """An error: the name of its class, its message, and its attributes."""

    kind: str
    message: str
    details: dict[str, Any]


class EngineFault(Exception):
    """An error of the engine's process that is no error of a request: its log says more."""


def plain(value: object) -> Any:
    """Return a dataclass as plain values."""
    return msgspec.to_builtins(value, enc_hook=_as_plain)


def typed(value: object, kind: type[T]) -> T:
    """Return plain values as the dataclass that they were."""
    return msgspec.convert(value, kind, dec_hook=_as_typed, strict=False)


def _as_plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value.absolute())
    if isinstance(value, Exception):
        return str(value)
    raise TypeError(f"a {type(value).__name__} does not travel")


def _as_typed(kind: type, value: Any) -> object:
    if kind is Path:
        return Path(value)
    if kind is Exception:
        return EngineFault(value)
    raise TypeError(f"a {kind.__name__} does not travel")


def plain_config(config: EngineConfig) -> dict[str, Any]:
    """Return the options of an engine as plain values; its paths are absolute."""
    values = {each.name: getattr(config, each.name) for each in fields(config)}
    return {
        name: str(value.absolute()) if isinstance(value, Path) else value
        for name, value in values.items()
    }


def typed_config(values: dict[str, Any]) -> EngineConfig:
    """Return the options of an engine."""
    return EngineConfig(**values)


_DEFAULTS = SamplingParams()
_NAMES = tuple(each.name for each in fields(SamplingParams) if each.name != "mask")


def plain_sampling(sampling: SamplingParams) -> Raw:
    """Return the fields that differ from the defaults.

    Raises InvalidSampling for a mask, and for numbers that no message holds.
    """
    if sampling.mask is not None:
        raise InvalidSampling("mask", sampling.mask, "None in an API server process")
    values = {
        name: value
        for name in _NAMES
        if (value := getattr(sampling, name)) != getattr(_DEFAULTS, name)
    }
    if (form := sampling.structured) is not None:
        values["structured"] = {form.kind: getattr(form, form.kind)}
    if sampling.max_tokens is not None and sampling.max_tokens > _MOST:
        values["max_tokens"] = _MOST  # no context holds as many
    try:
        return Raw(msgpack.encode(values))
    except OverflowError:
        name = next(name for name, value in values.items() if not _fits(value))
        raise InvalidSampling(name, values[name], "numbers below 2^64") from None


_MOST = 2**63 - 1


def _fits(value: Any) -> bool:
    """Return True if a message holds a value."""
    try:
        msgpack.encode(value)
    except OverflowError:
        return False
    return True


@lru_cache(maxsize=1024)  # most requests ask for the same
def typed_sampling(data: bytes) -> SamplingParams:
    """Return sampling parameters; raises InvalidSampling."""
    values = _DECODE_FIELDS(data)
    form = values.pop("structured", None)
    return SamplingParams(**values, structured=None if form is None else StructuredOutput(**form))


_DECODE_FIELDS = msgpack.Decoder(dict[str, Any], strict=False).decode


def plain_array(array: NDArray[Any]) -> Array:
    """Return an array with its type and shape."""
    return array.dtype.str, list(array.shape), array.tobytes()


def typed_array(record: Array) -> NDArray[Any]:
    """Return the array."""
    dtype, shape, data = record
    return np.frombuffer(data, dtype).reshape(shape)


def plain_texts(texts: Sequence[Text]) -> list[tuple[bytes, int | None]]:
    """Return texts as int64 token ids, and where their second types begin."""
    return [(text.ids.tobytes(), text.second_from) for text in texts]


def typed_texts(records: Sequence[tuple[bytes, int | None]]) -> list[Text]:
    """Return the texts."""
    return [Text(np.frombuffer(ids, np.int64), second_from) for ids, second_from in records]


def plain_entries(places: Sequence[LogprobAt]) -> Entries | None:
    """Return the log-probabilities of sampled tokens as arrays; None where there are none."""
    if not places:
        return None
    return [place.num_top for place in places], _plain_logprobs(gathered(places))


def typed_entries(record: Entries | None) -> list[LogprobAt]:
    """Return the log-probabilities of sampled tokens."""
    if record is None:
        return []
    counts, arrays = record
    found = TokenLogprobs(*map(typed_array, arrays))
    return [LogprobAt(found, number, count) for number, count in enumerate(counts)]


def plain_logprobs(entries: Sequence[TokenLogprob]) -> list[Array] | None:
    """Return the log-probabilities of a prompt as arrays; None where there are none."""
    return _plain_logprobs(entries) if isinstance(entries, TokenLogprobs) else None


def _plain_logprobs(entries: TokenLogprobs) -> list[Array]:
    names = ("token_ids", "logprobs", "ranks", "top_ids", "top")
    return [plain_array(getattr(entries, name)) for name in names]


def typed_logprobs(records: Sequence[Array] | None) -> Sequence[TokenLogprob]:
    """Return the log-probabilities of a prompt."""
    return () if records is None else TokenLogprobs(*map(typed_array, records))


def plain_media(media: PromptMedia | None) -> Any:
    """Return the media of a prompt as plain values and arrays."""
    if media is None:
        return None
    positions = None if media.positions is None else plain_array(media.positions)
    items = [_plain_item(item) for item in media.items]
    return items, positions, media.delta, media.bidirectional


def _plain_item(item: MediaItem) -> Any:
    given = item.input
    mixture = None if given.mixture is None else [plain_array(each) for each in given.mixture]
    levels = None if given.levels is None else [plain_array(given.levels[0]), given.levels[1]]
    numbers = given.num_tokens, given.digest, given.grid_thw, given.num_valid
    return item.runs, given.kind, [plain_array(given.features), levels], numbers, mixture


def typed_media(value: Any) -> PromptMedia | None:
    """Return the media of a prompt."""
    if value is None:
        return None
    items, positions, delta, bidirectional = value
    return PromptMedia(
        tuple(_typed_item(*item) for item in items),
        None if positions is None else typed_array(positions),
        delta,
        bidirectional,
    )


def _typed_item(runs: Any, kind: Any, features: Any, numbers: Any, mixture: Any) -> MediaItem:
    num_tokens, digest, grid_thw, num_valid = numbers
    array, levels = features
    tower_input = TowerInput(
        kind,
        typed_array(array),
        num_tokens,
        digest,
        None if grid_thw is None else tuple(grid_thw),
        num_valid,
        None if mixture is None else Mixture(*map(typed_array, mixture)),
        None if levels is None else Levels(typed_array(levels[0]), levels[1]),
    )
    return MediaItem(tower_input, tuple((first, length) for first, length in runs))


def plain_stats(stats: EngineStats) -> Any:
    """Return statistics as plain values."""
    return plain(stats)


def typed_stats(value: Any) -> EngineStats:
    """Return statistics."""
    return typed(value, EngineStats)


def plain_map(picture: CacheMap) -> Any:
    """Return a picture of the KV cache as plain values."""
    groups = [(plain_array(each.states), plain_array(each.owners)) for each in picture.groups]
    return picture.span_len, [plain(each) for each in picture.running], groups


def typed_map(value: Any) -> CacheMap:
    """Return a picture of the KV cache."""
    span_len, running, groups = value
    return CacheMap(
        span_len,
        tuple(RunningSequence(**each) for each in running),
        tuple(GroupMap(*map(typed_array, group)) for group in groups),
    )


def fault_of(error: BaseException) -> Fault:
    """Return an error as plain values; of one of an unknown kind, its text alone."""
    if isinstance(error, Problem):
        names = ("status", "type", "param", "code", "headers")
        return Fault("Problem", error.message, {name: getattr(error, name) for name in names})
    if not isinstance(error, EngineError):
        return Fault("", f"{type(error).__name__}: {error}", {})
    details = {
        name: value if isinstance(value, str | int | float | None) else shown(value)
        for name, value in vars(error).items()
    }
    return Fault(type(error).__name__, str(error), details)


def error_of(fault: Fault) -> Exception:
    """Return the error."""
    if fault.kind == "Problem":
        status = fault.details["status"]
        rest = {name: value for name, value in fault.details.items() if name != "status"}
        return Problem(status, fault.message, **rest)
    kind = getattr(spaninfer_engine, fault.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, EngineError)):
        return EngineFault(fault.message)
    error = kind.__new__(kind)
    Exception.__init__(error, fault.message)
    for name, value in fault.details.items():
        setattr(error, name, value)
    return error
