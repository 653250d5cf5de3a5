"""Decisions about encoders: how texts become vectors, and how many of them share a step."""

from __future__ import annotations

from spaninfer_engine.config import Decision, EngineConfig, Resolved
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.spec.nodes import Encoder
from spaninfer_engine.startup.compute import Compute
from spaninfer_engine.startup.limits import Allocation, decide_demand, resolved


def resolve_encoder(asked: EngineConfig, name: str, encoder: Encoder, compute: Compute) -> Resolved:
    """Decide the rest of an encoder: lengths and limits."""
    if asked.max_len is not None and asked.max_len > encoder.max_len:
        raise ConfigError(
            f"max_len is {asked.max_len}; the model was made for texts of {encoder.max_len} tokens"
        )
    demand, pool = decide_demand(asked, compute, encoder), encoder.pool
    why_len = "what the model was made for" if asked.max_len is None else "requested"
    decisions = (
        Decision("text", f"{demand.max_len:,} tokens", why_len),
        Decision(
            "pooling", " + ".join(pool.kinds), "normalised" if pool.normalise else "not normalised"
        ),
        Decision(
            "step",
            f"{demand.step_tokens:,} tokens, {demand.max_running} texts",
            "a longer text has a step of its own",
        ),
    )
    return resolved(asked, name, encoder, compute, demand, Allocation(decisions))
