"""The model that is asked for, and its tree, found without a backend: API servers have none."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

from spaninfer_engine.config import EngineConfig
from spaninfer_engine.errors import CheckpointError, ConfigError, NotBuilt
from spaninfer_engine.load import Checkpoint
from spaninfer_engine.load.folders.hub_cache import find_model, model_name, where_to_get
from spaninfer_engine.load.folders.logit_score import ScoreTokens
from spaninfer_engine.load.folders.sentence import read_sentence_settings
from spaninfer_engine.load.quantised.zero_biases import is_zero_bias
from spaninfer_engine.load.tensors.reader import check_dtypes
from spaninfer_engine.nearest import did_you_mean
from spaninfer_engine.spec import Decoder, Encoder, Model, check, find, load
from spaninfer_engine.spec import resolve as resolve_spec
from spaninfer_engine.spec.pooled import as_encoder
from spaninfer_engine.spec.pooling_nodes import Labels, LogitScore
from spaninfer_engine.spec.tree import weights

MODELS = "spaninfer.models"
"""Entry points of packages that bring a model: the name is the model's, the value a function
without arguments that returns its folder."""

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


def locate(model: str | Path) -> tuple[Path, str]:
    """Return the folder or file of a model, and its name.

    The bare name of a model that a package brings means that one; ./NAME is always a path. A name
    that is no path is looked for in the hub's local cache.
    """
    brought = {point.name: point for point in entry_points(group=MODELS)}
    if isinstance(model, str) and model in brought:
        return Path(brought[model].load()()), model
    path = find_model(model)
    if path is not None:
        return path, model_name(path)
    names = ", ".join(sorted(brought)) or "none"
    way_out = did_you_mean(str(model), brought) or f"; {where_to_get(model)}"
    raise ConfigError(f"there is no model {str(model)!r} (bundled: {names}){way_out}")


def resolve_model(asked: EngineConfig, checkpoint: Checkpoint) -> Model:
    """Return the tree of a checkpoint, which has all of its weights."""
    spec = load(asked.spec) if asked.spec is not None else find(checkpoint.config)
    reader, has_weights = checkpoint.reader, asked.weights != "dummy"
    model = resolve_spec(spec, checkpoint.config, reader.names if has_weights else None)
    model = _with_sentence_settings(model, checkpoint.path)
    if isinstance(model, Encoder):
        _refuse_decoder_options(asked)
    if has_weights:
        shapes = {name: reader.shape(name) for name in reader.names}
        check(model, shapes, partial(is_zero_bias, reader))
        check_dtypes(reader, (weight.name for weight in weights(model)))
    return model


def resolve_decoder(asked: EngineConfig, checkpoint: Checkpoint) -> Decoder:
    """Return the tree of a checkpoint of a decoder; NotBuilt for others."""
    model = resolve_model(asked, checkpoint)
    if isinstance(model, Decoder):
        return model
    raise NotBuilt(
        f"{checkpoint.path} holds an encoder ({model.architecture}); this is for decoders"
    )


def _with_sentence_settings(model: Model, path: Path) -> Model:
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


def _refuse_decoder_options(asked: EngineConfig) -> None:
    """Raise ConfigError for options that mean nothing to an encoder."""
    for name in FOR_DECODERS:
        if (value := getattr(asked, name)) is not None:
            raise ConfigError(
                f"{name} is {value}; an encoder has neither KV cache nor chat: leave {name} out"
            )
