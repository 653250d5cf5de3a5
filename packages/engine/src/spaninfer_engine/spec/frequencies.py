"""The angular frequencies of a rotary embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "ntk_prompt"]


@dataclass(frozen=True, slots=True)
class Frequencies:
    """The rotation frequencies of a rotary embedding, before positions enter.

    kind        what it reads
    default     theta
    linear      + factor
    dynamic     + factor, max_len: theta grows with the request's length beyond max_len
    llama3      + factor, low_freq_factor, high_freq_factor, original_len
    yarn        + factor, beta_fast, beta_slow, mscale, mscale_all_dim, truncate,
                attention_factor, original_len
    longrope    + factor, short_factors, long_factors, attention_factor, original_len
    ntk_prompt  + original_len (Qwen-1): theta grows in powers of two with the prompt's length
    """

    kind: RopeKind
    dim: int  # rotated width of a head
    theta: float
    max_len: int
    original_len: int
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    recompute: bool = False  # crossing original_len recomputes every key (Phi-3's longrope)

    @property
    def grows(self) -> bool:
        """True if generated tokens count towards the length; for Qwen-1 only the prompt does."""
        return self.kind != "ntk_prompt"

    def state(self, length: int) -> tuple[int, ...]:
        """Return what about `length` changes the frequencies; () where nothing does.

        Keys rotated under different states must not be shared.
        """
        match self.kind:
            case "dynamic":
                return (length,) if length > self.max_len else ()
            case "longrope":
                return (1,) if length > self.original_len else ()
            case "ntk_prompt":
                return (_ntk_step(length, self.original_len),) if length > self.original_len else ()
            case _:
                return ()


def _ntk_step(length: int, original_len: int) -> int:
    """Return ceil(log2(length / original_len)) in integers."""
    step = 0
    while original_len << step < length:
        step += 1
    return step
