"""The memory plan of the KV cache: spans per cache group, and what else takes memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from spaninfer_engine.errors import ConfigError
from spaninfer_engine.spec.nodes import CacheGroup

STATES_PER_REQUEST = 2
"""Spans of a state group for each request: its own state, and a snapshot for others."""

STATE_BYTES = 4  # of a number of a state, whatever keys and values are stored in

SCALE_BYTES = 4  # of a scale, or a zero


@dataclass(frozen=True, slots=True)
class Stored:
    """The format of the KV cache: bits of an element, bytes of scales per head and token.

    Latents of MLA have these once, or as often again for their rotary part.
    """

    bits: int
    scale_bytes: int = 0
    latent_scales: int = 1


@dataclass(frozen=True, slots=True)
class Demand:
    """The most that requests can ever hold: so many of them, so long, so many tokens per step."""

    max_len: int
    max_running: int
    step_tokens: int


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes of a device's memory that are not for spans, as measured: weights, the largest step,
    graphs that will be captured, the largest batch of towers; and what encodings of media may take.
    """

    weights: int = 0
    steps: int = 0
    graphs: int = 0
    towers: int = 0
    encodings: int = 0  # of media

    def __str__(self) -> str:
        """Return what takes how much; empty if nothing does."""
        parts = {
            "weights": self.weights,
            "steps": self.steps,
            "graphs": self.graphs,
            "towers": self.towers,
            "encodings of media": self.encodings,
        }
        return ", ".join(f"{name} {gib(number)}" for name, number in parts.items() if number)


def gib(number: int) -> str:
    """Return a number of bytes in GiB.

    >>> gib(3 << 29)
    '1.5 GiB'
    """
    return f"{number / 2**30:,.1f} GiB"


def span_bytes(group: CacheGroup, span_len: int, stored: Stored) -> int:
    """Return the bytes of one span: keys and values of `span_len` tokens in all layers, or what
    they keep of a sequence.
    """
    if group.state is not None:
        return len(group.layers) * group.state.numbers * STATE_BYTES
    dims = (group.key_size,) if group.values_in_keys else (group.key_size, group.value_size)
    scales = stored.latent_scales if group.rotary_dim else len(dims)
    number_bytes = [dim * stored.bits // 8 for dim in dims]
    if stored.scale_bytes:
        number_bytes = [padded_bytes(each) for each in number_bytes]
    head_bytes = sum(number_bytes) + scales * stored.scale_bytes
    return len(group.layers) * group.kv_heads * head_bytes * span_len


def padded_bytes(number: int) -> int:
    """Return the bytes of a record of codes and scales: a whole number of float32.

    >>> padded_bytes(17)
    20
    """
    return -(-number // SCALE_BYTES) * SCALE_BYTES


def spans_per_request(group: CacheGroup, span_len: int, demand: Demand) -> int:
    """Return the spans that the longest request holds at once.

    A window group gives spans back behind the window, but a step needs those of the positions that
    it computes besides; the window may begin inside one span and the step end inside another.
    """
    if group.state is not None:
        return STATES_PER_REQUEST
    whole = -(-demand.max_len // span_len)
    if group.window is None:
        return whole
    return min(whole, -(-(group.window + demand.step_tokens) // span_len) + 1)


def fit(
    groups: Sequence[CacheGroup], *, budget: int, span_len: int, stored: Stored, demand: Demand
) -> tuple[int, ...]:
    """Return the number of spans per cache group that a budget of bytes holds.

    Every group gets what `max_running` requests of `max_len` need, or, where that is too much, the
    same share of it. ConfigError where not even one such request fits.
    """
    single = [spans_per_request(group, span_len, demand) for group in groups]
    sizes = [span_bytes(group, span_len, stored) for group in groups]
    one = sum(count * size for count, size in zip(single, sizes, strict=True))
    if one > budget:
        raise ConfigError(
            f"one request of {demand.max_len:,} token{'s'[: demand.max_len - 1]} needs "
            f"{one:,} bytes of KV cache, but only {budget:,} are available; raise memory"
            + (", or lower max_len" if demand.max_len > span_len else "")
        )
    requests = min(float(demand.max_running), budget / one)
    return tuple(int(count * requests) for count in single)


def longest(
    groups: Sequence[CacheGroup],
    *,
    budget: int,
    span_len: int,
    stored: Stored,
    max_len: int,
    step_tokens: int,
) -> int:
    """Return the most tokens, up to `max_len`, that one request can have within the budget.

    At least 1: where that does not fit either, `fit` says what it needs.
    """

    def needed(length: int) -> int:
        demand = Demand(length, 1, step_tokens)
        return sum(
            spans_per_request(group, span_len, demand) * span_bytes(group, span_len, stored)
            for group in groups
        )

    return max(1, bisect_right(range(1, max_len + 1), budget, key=needed))
