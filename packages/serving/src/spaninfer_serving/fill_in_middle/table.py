"""The marks by which models are asked to fill in the middle, as their authors publish them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FimMarks:
    """The tokens around prefix and suffix, each a text of the vocabulary.

    `order`: the prompt, in which "prefix" and "suffix" stand for the texts. `ends`: tokens that end
    what is filled in, beside the model's own, where the vocabulary has them.
    """

    order: tuple[str, ...]
    ends: tuple[str, ...] = ()

    @property
    def before_prefix(self) -> str:
        """The token in front of the prefix."""
        return self.order[self.order.index("prefix") - 1]

    @property
    def needed(self) -> tuple[str, ...]:
        """The tokens that a vocabulary must have."""
        return tuple(part for part in self.order if part not in ("prefix", "suffix"))


def _prefix_first(prefix: str, suffix: str, middle: str, ends: tuple[str, ...] = ()) -> FimMarks:
    return FimMarks((prefix, "prefix", suffix, "suffix", middle), ends)


def _deepseek(word: str) -> str:
    return f"<\uff5cfim▁{word}\uff5c>"  # bars of full width


_PUBLISHED = (
    # Qwen2.5-Coder and -2.5, CodeGemma, Granite 4
    _prefix_first(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
    ),
    # StarCoder, StarCoder2, Granite Code and 3, CodeQwen1.5, StableCode
    _prefix_first(
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        ("<|endoftext|>", "<fim_pad>", "<repo_name>", "<file_sep>"),
    ),
    # SantaCoder
    _prefix_first("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ("<|endoftext|>", "<fim-pad>")),
    # DeepSeek-Coder, -Coder-V2 and -V3
    _prefix_first(_deepseek("begin"), _deepseek("hole"), _deepseek("end")),
    # Code Llama
    _prefix_first("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",)),
    # Codestral: the suffix first, and nothing in front of the middle
    FimMarks(("[SUFFIX]", "suffix", "[PREFIX]", "prefix")),
)

FIM_MARKS: Mapping[str, FimMarks] = {marks.before_prefix: marks for marks in _PUBLISHED}
"""By the token in front of the prefix."""
