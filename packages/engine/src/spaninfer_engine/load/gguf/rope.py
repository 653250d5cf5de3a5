"""Rope scaling of GGUF files, as config.json writes it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spaninfer_engine.errors import ConfigError
from spaninfer_engine.load.gguf.metadata import Metadata, shortest

_OF_YARN = {
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "attn_factor": "attention_factor",
    "yarn_attn_factor": "attention_factor",
}
"""Keys that newer files carry along, as config.json calls them."""


def linear_or_yarn(metadata: Metadata) -> dict[str, Any] | None:
    """The rope_scaling that the metadata states; None where there is none."""
    kind = metadata.optional("rope.scaling.type")
    if kind in (None, "none"):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": metadata.number("rope.scaling.factor")}
    if kind == "yarn":
        original = metadata.count("rope.scaling.original_context_length")
        told = {
            key: shortest(metadata.number(f"rope.scaling.{stored}"))
            for stored, key in _OF_YARN.items()
            if metadata.optional(f"rope.scaling.{stored}") is not None
        }
        return {
            "rope_type": "yarn",
            "factor": metadata.number("rope.scaling.factor"),
            "original_max_position_embeddings": original,
            **told,
        }
    raise ConfigError(
        f"{metadata.source}: rope scaling {kind!r} is not read; none, linear and yarn are"
    )


def llama3_scaling(metadata: Metadata, factors: np.ndarray) -> dict[str, Any]:
    """The parameters of Llama 3.1's rope scaling, found again from its stored factors.

    The file keeps only the factors per frequency. All published models use the bounds 1 and 4
    over a context of 8192 and differ in the largest factor; the factors must agree with that.
    """
    if not factors.size:
        raise ConfigError(f"{metadata.source}: rope_freqs.weight holds no factors")
    scaling: dict[str, Any] = {
        "rope_type": "llama3",
        "factor": float(factors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    theta = metadata.number("rope.freq_base", 10000.0)
    if not np.allclose(factors, llama3_factors(scaling, theta, len(factors)), rtol=1e-4):
        raise ConfigError(
            f"{metadata.source}: rope_freqs.weight is not Llama 3.1's scaling with bounds 1 and 4 "
            "over 8192 positions; use the Hugging Face folder"
        )
    return scaling


def llama3_factors(scaling: dict[str, Any], theta: float, num_frequencies: int) -> np.ndarray:
    """Return the divisor of each frequency, float64 [D/2]."""
    wavelengths = 2 * math.pi * theta ** (np.arange(num_frequencies) / num_frequencies)
    turns = scaling["original_max_position_embeddings"] / wavelengths
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    factors: np.ndarray = 1 / ((1 - smooth) / scaling["factor"] + smooth)
    return factors
