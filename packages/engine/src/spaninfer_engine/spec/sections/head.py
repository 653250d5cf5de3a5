"""[head] of encoders -> the layers that follow the pooling, and their labels."""

from __future__ import annotations

from typing import Literal, cast

from spaninfer_engine.errors import shown
from spaninfer_engine.spec.maker import Maker
from spaninfer_engine.spec.pooling_nodes import HeadActivation, HeadLayer, Labels, Pool, PoolKind

Activation = Literal["sigmoid", "softmax", "identity"]
MULTI_LABEL = "multi_label_classification"


def classifier(maker: Maker) -> tuple[Pool, tuple[HeadLayer, ...], Labels | None]:
    """Return how a classifier pools, its layers and labels; of other encoders the mean alone.

    The mean is what sentence-transformers takes where no file says how.
    """
    scope = maker.scope
    if not scope.flag("head", "classifier"):
        return Pool(("mean",), normalise=False), (), None
    labels = _labels(maker)
    hidden = scope.integer("dims", "hidden")
    layers = [
        HeadLayer(maker.linear(maker.name("label_out"), len(labels.names), hidden, bias=True))
    ]
    if name := maker.name("label_dense"):
        dense = maker.linear(name, hidden, hidden, bias=scope.flag("head", "label_bias"))
        act = cast(HeadActivation, scope.text("head", "label_act"))
        layers.insert(0, HeadLayer(dense, act, maker.norm(maker.name("label_norm"), hidden)))
    kind = cast(PoolKind, scope.text("head", "label_pool"))
    return Pool((kind,), normalise=False), tuple(layers), labels


def _labels(maker: Maker) -> Labels:
    """Return the labels of a config; two where it names none, as transformers does."""
    said = maker.scope.optional_table("head", "labels") or {"0": "LABEL_0", "1": "LABEL_1"}
    try:
        names = tuple(str(said[key]) for key in sorted(said, key=int))
    except ValueError:
        problem = f"labels are named by their numbers; this is {shown(said)}"
        raise maker.scope.error("head", "labels", problem) from None
    return Labels(names, _activation(maker, len(names)))


def _activation(maker: Maker, count: int) -> Activation:
    """Return what probabilities are made by: what the config names, else what labels suggest."""
    scope = maker.scope
    named = scope.value("head", "score_act")
    if named is not None:
        name = str(named).rpartition(".")[2].lower()
        if name not in ("sigmoid", "softmax", "identity"):
            raise scope.error("head", "score_act", "built are Sigmoid, Softmax and Identity")
        return cast(Activation, name)
    is_multiple = scope.value("head", "problem") == MULTI_LABEL
    return "sigmoid" if count == 1 or is_multiple else "softmax"
