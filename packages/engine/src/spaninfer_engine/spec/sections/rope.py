"""[rope] and the scaling table of config.json -> Rope."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from spaninfer_engine.errors import SpecError
from spaninfer_engine.spec.attention_nodes import Rope, RopeStyle
from spaninfer_engine.spec.frequencies import Frequencies, RopeKind
from spaninfer_engine.spec.language.syntax import BadValue
from spaninfer_engine.spec.language.typed import (
    COUNT,
    FLAG,
    INDEX,
    NUMBER,
    POSITIVE,
    TEXT,
    Type,
    number,
)
from spaninfer_engine.spec.scope import Scope

# What each kind reads from the table, as both spellings of config.json call it.
READS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
    "yarn": frozenset(
        {"factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}
        | {"attention_factor"}
    ),
    "longrope": frozenset({"factor", "short_factor", "long_factor", "attention_factor"}),
}
OTHER_NAMES = {"su": "longrope", "mrope": "default"}
_MSCALE = number(0.0, 1e6)
EVERY_KIND = frozenset(  # read elsewhere, or without a meaning
    {"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned"}
    | {"original_max_position_embeddings", "max_position_embeddings"}
    | {"mrope_section", "mrope_interleaved"}
)


def rope(scope: Scope, local: bool) -> Rope:
    """Return the rotary embedding of a layer; `local`: a layer with a window."""
    dim = int(scope.integer("rope", "dim") * scope.number("rope", "fraction"))
    size = scope.integer("dims", "qk_rope" if scope.text("attn", "kind") == "mla" else "head_dim")
    if not 2 <= dim <= size or dim % 2:
        problem = f"rotates {dim} of {size} channels of a head; it must be an even number of them"
        raise scope.error("rope", "fraction", problem)
    local = local and scope.optional_number("rope", "local_theta") is not None
    table = Table(scope, "local_scaling" if local else "scaling")
    return Rope(
        style=cast(RopeStyle, scope.text("rope", "style")),
        frequencies=_frequencies(scope, table, dim, local),
        sections=_sections(scope, table, dim),
        mrope_interleaved=scope.text("rope", "mrope") == "interleaved",
    )


class Table:
    """The scaling table: typed reads, and no key that its kind does not know."""

    def __init__(self, scope: Scope, key: str) -> None:
        self._scope, self._key = scope, key
        self._words = scope.optional_table("rope", key) or {}
        said = self.text("rope_type") or self.text("type") or "default"
        self.kind = OTHER_NAMES.get(said, said)
        if self.kind not in READS:
            raise self.error(f"the rope type {said!r} is not built; built are {', '.join(READS)}")
        read = READS[self.kind] | EVERY_KIND
        if scope.optional_number("attn", "llama4_beta") is not None:
            read |= {"llama_4_scaling_beta"}
        for word, value in self._words.items():
            if value is not None and word not in read:
                raise self.error(f"rope type {said!r} has no {word!r} here (it is {value!r})")

    def error(self, problem: str) -> SpecError:
        """Return the error that blames the table."""
        return self._scope.error("rope", self._key, problem)

    def number(self, word: str, type_: Type = NUMBER) -> float | None:
        """Return a number, None where the table does not say it."""
        return cast("float | None", self._get(word, type_))

    def needed(self, word: str, type_: Type) -> float:
        """Return a number that the kind cannot do without."""
        if (value := self.number(word, type_)) is None:
            raise self.error(f"rope type {self.kind!r} needs {word!r}")
        return value

    def factor(self) -> float | None:
        """Return by how much a length was stretched, None where the table does not say it."""
        return self.number("factor", POSITIVE)

    def needed_factor(self) -> float:
        """Return the factor of a kind that cannot do without."""
        return self.needed("factor", POSITIVE)

    def length(self, word: str) -> int | None:
        """Return a number of positions, None where the table does not say it."""
        return cast("int | None", self._get(word, INDEX))

    def flag(self, word: str) -> bool | None:
        """Return true or false, None where the table does not say it."""
        return cast("bool | None", self._get(word, FLAG))

    def text(self, word: str) -> str | None:
        """Return a text, None where the table does not say it."""
        return cast("str | None", self._get(word, TEXT))

    def numbers(self, word: str, length: int) -> tuple[float, ...]:
        """Return a list of numbers of a length."""
        values = self._words.get(word)
        if not isinstance(values, tuple) or len(values) != length:
            fraction = self._scope.number("rope", "fraction")
            raise self.error(
                f"{word!r} must be a list of {length} numbers, one per pair of rotated channels "
                f"(partial_rotary_factor is {fraction:g})"
            )
        return tuple(cast(float, self._checked(word, value, POSITIVE)) for value in values)

    def sections(self) -> tuple[int, ...]:
        """Return how many frequencies each axis of M-RoPE gets."""
        values = self._words.get("mrope_section")
        if values is None:
            values = self._scope.value("rope", "sections") or None
        if not isinstance(values, tuple):
            raise self.error("'mrope_section' must be a list of integers")
        return tuple(cast(int, self._checked("mrope_section", value, COUNT)) for value in values)

    def _get(self, word: str, type_: Type) -> object:
        value = self._words.get(word)
        return None if value is None else self._checked(word, value, type_)

    def _checked(self, word: str, value: object, type_: Type) -> object:
        try:
            return type_.accept(value)
        except BadValue as error:
            raise self.error(f"{word}: {error}") from error


def yarn_factor(scope: Scope) -> float:
    """Return what DeepSeek multiplies the scale of its scores with; 1 without yarn."""
    table = Table(scope, "scaling")
    amount = table.number("mscale_all_dim", _MSCALE) if table.kind == "yarn" else None
    if not amount:
        return 1.0
    factor = table.needed_factor()
    return (0.1 * amount * math.log(factor) + 1.0) ** 2 if factor > 1 else 1.0


def _frequencies(scope: Scope, table: Table, dim: int, local: bool) -> Frequencies:
    max_len = scope.integer("dims", "max_pos")
    outside = scope.optional_integer("rope", "original")
    original = outside or table.length("original_max_position_embeddings") or max_len
    base = "local_theta" if local else "theta"
    theta = scope.number("rope", base)
    if (prompt := scope.optional_integer("rope", "ntk_prompt")) is not None:
        _demand_pairs(scope, "ntk_prompt", dim)
        return Frequencies("ntk_prompt", dim, theta, max_len, original_len=prompt)
    plain = Frequencies(cast(RopeKind, table.kind), dim, theta, max_len, original)
    return _KINDS[table.kind](plain, table, scope)


def _default(plain: Frequencies, table: Table, scope: Scope) -> Frequencies:
    del table, scope
    return plain


def _linear(plain: Frequencies, table: Table, scope: Scope) -> Frequencies:
    del scope
    return replace(plain, factor=table.needed_factor())


def _dynamic(plain: Frequencies, table: Table, scope: Scope) -> Frequencies:
    _demand_pairs(scope, "scaling", plain.dim)
    return replace(plain, factor=table.needed_factor())


def _demand_pairs(scope: Scope, key: str, dim: int) -> None:
    """Refuse a base that grows with dim / (dim - 2) where that is none."""
    if dim < 4:
        problem = f"theta cannot grow where {dim} channels are rotated; it takes 4 or more"
        raise scope.error("rope", key, problem)


def _llama3(plain: Frequencies, table: Table, scope: Scope) -> Frequencies:
    del scope
    low, high = (table.needed(f"{word}_freq_factor", POSITIVE) for word in ("low", "high"))
    if low > high:
        raise table.error(
            f"'low_freq_factor' is {low:g}; it may be the high one, {high:g}, at most"
        )
    return replace(plain, factor=table.needed_factor(), low_freq_factor=low, high_freq_factor=high)


def _yarn(plain: Frequencies, table: Table, scope: Scope) -> Frequencies:
    if plain.theta == 1:
        raise scope.error("rope", "theta", "it is 1; yarn needs more")
    return replace(
        plain,
        factor=table.factor() or plain.max_len / plain.original_len,
        beta_fast=table.number("beta_fast", POSITIVE) or plain.beta_fast,
        beta_slow=table.number("beta_slow", POSITIVE) or plain.beta_slow,
        mscale=table.number("mscale", _MSCALE),
        mscale_all_dim=table.number("mscale_all_dim", _MSCALE),
        attention_factor=table.number("attention_factor", POSITIVE),
        truncate=table.flag("truncate") is not False,
    )


def _longrope(plain: Frequencies, table: Table, scope: Scope) -> Frequencies:
    if plain.original_len < 2:
        raise table.error("the original length is 1; its logarithm must be above 0")
    return replace(
        plain,
        factor=table.factor() or plain.max_len / plain.original_len,
        short_factors=table.numbers("short_factor", plain.dim // 2),
        long_factors=table.numbers("long_factor", plain.dim // 2),
        attention_factor=table.number("attention_factor", POSITIVE),
        recompute=scope.flag("rope", "recompute"),
    )


_KINDS: Mapping[str, Callable[[Frequencies, Table, Scope], Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def _sections(scope: Scope, table: Table, dim: int) -> tuple[int, ...]:
    if scope.text("rope", "mrope") == "none":
        return ()
    sections = table.sections()
    if sum(sections) != dim // 2:
        raise table.error(f"mrope_section {list(sections)} must sum to {dim // 2}")
    return sections
