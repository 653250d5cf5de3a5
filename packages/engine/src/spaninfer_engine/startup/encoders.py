"""Decisions about encoders: how texts become vectors, and how many of them share a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spaninfer_engine.config import Decision, EngineConfig, Resolved
from spaninfer_engine.errors import CheckpointError, ConfigError, NotBuilt
from spaninfer_engine.load.folders.logit_score import ScoreTokens
from spaninfer_engine.load.folders.sentence import read_sentence_settings
from spaninfer_engine.spec.nodes import Decoder, Encoder, Model
from spaninfer_engine.spec.pooled import as_encoder
from spaninfer_engine.spec.pooling_nodes import Labels, LogitScore
from spaninfer_engine.startup.compute import Compute
from spaninfer_engine.startup.limits import Allocation, decide_demand, resolved

FOR_DECODERS = (  # options; None: not requested
    "memory",
    "span_len",
    "kv_dtype",
    "kv_offload",
    "kv_disk",
    "kv_disk_size",
    "kv_ttl_s",
    "chat_template",
)


def with_sentence_settings(model: Model, path: Path) -> Model:
    """Return the model as the files of sentence-transformers beside its weights want it.

    Without them, and of a classifier, it stays as it is; a decoder with them gives vectors, and
    generates nothing. Raises CheckpointError and NotBuilt for what they say.
    """
    settings = read_sentence_settings(path)
    if settings is None or (isinstance(model, Encoder) and model.labels is not None):
        return model
    encoder = as_encoder(model, settings.pool) if isinstance(model, Decoder) else model
    score = settings.score
    return replace(
        encoder,
        pool=settings.pool,
        head=settings.dense if score is None else (_logit_score(model, score),),
        labels=None if score is None else Labels(("LABEL_0",), score.activation),
        text=settings.text,
        max_len=min(encoder.max_len, settings.max_len or encoder.max_len),
    )


def _logit_score(model: Model, score: ScoreTokens) -> LogitScore:
    """Return the layer that scores by logits; refuse models without plain logits."""
    if not isinstance(model, Decoder):
        raise NotBuilt(
            f"{score.source}: scores by logits are those of decoders; {model.architecture} is none"
        )
    head = model.head
    if head.project is not None or head.scale != 1.0 or head.softcap is not None or head.normalise:
        raise NotBuilt(
            f"scores by logits of {model.architecture} are not built: its head does more than "
            "multiply"
        )
    for key, token_id in (("true_token_id", score.true_id), ("false_token_id", score.false_id)):
        if token_id is not None and token_id >= model.vocab:
            raise CheckpointError(
                f"{score.source}: {key} is {token_id}; the model has tokens 0 to {model.vocab - 1}"
            )
    return LogitScore(head.linear, score.true_id, score.false_id)


def refuse_decoder_options(asked: EngineConfig) -> None:
    """Raise ConfigError for options that mean nothing to an encoder."""
    for name in FOR_DECODERS:
        if (value := getattr(asked, name)) is not None:
            raise ConfigError(
                f"{name} is {value}; an encoder has neither KV cache nor chat: leave {name} out"
            )


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
