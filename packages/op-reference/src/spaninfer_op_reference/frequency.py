"""Frequencies of rotary embeddings, one per channel pair: one rule per kind of model.

Channel pair i of R/2 turns by position * inverse[i] radians. The rules stretch the frequencies
`inverse` for requests longer than those of the training, and some also the rotated vectors, by a
factor on cos and sin.
"""

# ruff: noqa: D102  the docstring of FrequencyRule describes its fields

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from spaninfer_op_reference.arrays import Floats


class FrequencyRule(Protocol):
    """The parameters of a model's frequencies; a frozen dataclass with these fields will do.

    kind          default, linear, dynamic, llama3, yarn, longrope or ntk_prompt
    dim, theta    R, and the base of the geometric series
    max_len       the longest request before "dynamic" changes the base
    original_len  the length that the model was first trained with
    factor        how much longer requests may be: linear, dynamic, llama3, yarn, longrope
    *_freq_factor (llama3) and beta_* (yarn): turns within original_len between which frequencies
                  go over from kept to stretched; `truncate` rounds them to whole channel pairs
    mscale*       (yarn) and attention_factor (yarn, longrope): the factor on cos and sin
    *_factors     longrope: divisors of each frequency, up to original_len and beyond
    """

    @property
    def kind(self) -> str: ...
    @property
    def dim(self) -> int: ...
    @property
    def theta(self) -> float: ...
    @property
    def max_len(self) -> int: ...
    @property
    def original_len(self) -> int: ...
    @property
    def factor(self) -> float: ...
    @property
    def low_freq_factor(self) -> float: ...
    @property
    def high_freq_factor(self) -> float: ...
    @property
    def beta_fast(self) -> float: ...
    @property
    def beta_slow(self) -> float: ...
    @property
    def mscale(self) -> float | None: ...
    @property
    def mscale_all_dim(self) -> float | None: ...
    @property
    def attention_factor(self) -> float | None: ...
    @property
    def truncate(self) -> bool: ...
    @property
    def short_factors(self) -> Sequence[float]: ...
    @property
    def long_factors(self) -> Sequence[float]: ...


def frequencies(
    rule: FrequencyRule, length: int, dtype: DTypeLike = np.float32
) -> tuple[Floats, float]:
    """Return the frequencies [R/2] of a request of `length` tokens, and the factor on cos and sin.

    Only dynamic, longrope and ntk_prompt look at the length; for ntk_prompt it is the prompt's.
    """
    inverse = geometric(rule.dim, rule.theta, dtype)
    match rule.kind:
        case "default":
            return inverse, 1.0
        case "linear":
            return inverse / rule.factor, 1.0
        case "dynamic":
            grown = rule.factor * max(length, rule.max_len) / rule.max_len - (rule.factor - 1)
            return geometric(rule.dim, ntk_theta(rule, grown), dtype), 1.0
        case "ntk_prompt":
            return geometric(rule.dim, ntk_theta(rule, ntk_alpha(rule, length)), dtype), 1.0
        case "llama3":
            return _llama3(inverse, rule), 1.0
        case "yarn":
            return _yarn(inverse, rule), _yarn_factor(rule)
        case "longrope":
            factors = rule.long_factors if length > rule.original_len else rule.short_factors
            return inverse / np.asarray(factors, dtype), _longrope_factor(rule)
        case _:
            raise ValueError(f"there is no rope kind {rule.kind!r}")


def geometric(dim: int, theta: float, dtype: DTypeLike = np.float32) -> Floats:
    """[R/2]: theta^(-2 i / R)."""
    exponents = np.arange(0, dim, 2).astype(dtype) / dim
    return 1 / theta**exponents


def ntk_theta(rule: FrequencyRule, alpha: float) -> float:
    """Return the base that stretches the slowest frequency by alpha and leaves the fastest."""
    return float(rule.theta * alpha ** (rule.dim / (rule.dim - 2)))


def ntk_alpha(rule: FrequencyRule, prompt_len: int) -> float:
    """Return 2^(ceil(log2(n / original_len)) + 1) - 1, at least 1 (Qwen-1)."""
    doublings = math.ceil(math.log2(prompt_len / rule.original_len))
    return max(2.0 ** (doublings + 1) - 1, 1.0)


def _llama3(inverse: Floats, rule: FrequencyRule) -> Floats:
    """Frequencies over the factor where a turn is long, kept where it is short, mixed between."""
    turns = rule.original_len * inverse / (2 * math.pi)  # within the original length
    span = rule.high_freq_factor - rule.low_freq_factor
    above = turns - rule.low_freq_factor
    keep = np.clip(above / span if span else np.sign(above), 0, 1)  # none: Llama 4 Scout
    mixed: Floats = (1 - keep) * inverse / rule.factor + keep * inverse
    return mixed


def _yarn(inverse: Floats, rule: FrequencyRule) -> Floats:
    """Frequencies kept above beta_fast turns, over the factor below beta_slow, a ramp between.

    Peng et al. 2023, "YaRN": turns within the original length, which fix two channel pairs; some
    models do not truncate those to whole numbers.
    """
    low, high = (_pair_of_turns(rule, turns) for turns in (rule.beta_fast, rule.beta_slow))
    if rule.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rule.dim - 1)
    if low == high:
        high += 0.001  # a step, without dividing by zero
    ramp = np.clip((np.arange(rule.dim // 2, dtype=inverse.dtype) - low) / (high - low), 0, 1)
    return inverse / rule.factor * ramp + inverse * (1 - ramp)


def _pair_of_turns(rule: FrequencyRule, turns: float) -> float:
    """Return the channel pair, as a real number, that turns so often in the original length."""
    ratio = rule.original_len / (turns * 2 * math.pi)
    return rule.dim * math.log(ratio) / (2 * math.log(rule.theta))


def _yarn_factor(rule: FrequencyRule) -> float:
    """Return the configured factor, DeepSeek's quotient of two, or 0.1 ln(factor) + 1."""
    if rule.attention_factor is not None:
        return rule.attention_factor
    if rule.mscale and rule.mscale_all_dim:
        return yarn_mscale(rule.factor, rule.mscale) / yarn_mscale(rule.factor, rule.mscale_all_dim)
    return yarn_mscale(rule.factor)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """Return 0.1 mscale ln(factor) + 1; 1 where nothing is stretched.

    Squared, it is also DeepSeek's factor on the scale of its scores.
    """
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def _longrope_factor(rule: FrequencyRule) -> float:
    """Return the configured factor, or sqrt(1 + ln(factor) / ln(original_len))."""
    if rule.attention_factor is not None:
        return rule.attention_factor
    if rule.factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(rule.factor) / math.log(rule.original_len))
