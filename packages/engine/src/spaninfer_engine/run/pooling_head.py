"""The layers after pooling: Dense layers and classifiers, in float32 on the host.

They see one row per text, not one per token, so that their GEMMs are no part of a step's time
(64 texts of 1,024 channels: 0.07 GFLOP of about 1,000), and no backend needs operators for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import gelu, layer_norm, linear, relu, rms_norm

from spaninfer_engine.program.packer import Reader
from spaninfer_engine.spec.nodes import Encoder
from spaninfer_engine.spec.pooling_nodes import HeadActivation, HeadLayer, LogitScore
from spaninfer_engine.spec.weight_nodes import Norm, Ones, Weight

Rows = NDArray[np.float32]

_ACTIVATIONS: Mapping[HeadActivation, Callable[[Any], Any]] = {
    "identity": lambda x: x, "tanh": np.tanh, "gelu": gelu, "relu": relu,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Layer:
    node: HeadLayer
    weight: Rows
    bias: Rows | None
    norm_weight: Rows | None
    norm_bias: Rows | None

    def __call__(self, rows: Rows) -> Rows:
        y = _ACTIVATIONS[self.node.act](linear(rows, self.weight, self.bias))
        norm = self.node.norm
        if norm is None or self.norm_weight is None:
            return np.asarray(y, np.float32)
        if norm.kind == "layer":
            y = layer_norm(y, self.norm_weight, self.norm_bias, norm.eps)
        else:
            y = rms_norm(y, self.norm_weight, norm.eps, norm.plus_one)
        return np.asarray(y, np.float32)


class PoolingHead:
    """The layers of an encoder's head with their weights; without any, rows stay as they are."""

    def __init__(self, encoder: Encoder, reader: Reader) -> None:
        self._layers = [_read(node, reader) for node in encoder.head]

    def __call__(self, rows: Rows) -> Rows:
        """Return the rows [N O] that the head makes of pooled ones [N C]."""
        for layer in self._layers:
            rows = layer(rows)
        return rows


@dataclass(frozen=True, slots=True)
class _LogitScore:
    weight: Rows  # [1 C]
    bias: Rows | None

    def __call__(self, rows: Rows) -> Rows:
        return np.asarray(linear(rows, self.weight, self.bias), np.float32)


def _read(node: HeadLayer | LogitScore, reader: Reader) -> _Layer | _LogitScore:
    if isinstance(node, LogitScore):
        bias = node.head.bias
        rows = _difference(node, node.head.weight, reader)
        return _LogitScore(rows, None if bias is None else _difference(node, bias, reader))
    norm: Norm | None = node.norm
    norm_weight = None if norm is None else norm.weight
    assert not isinstance(norm_weight, Ones)  # the vocabulary offers none here
    return _Layer(
        node,
        _matrix(node.linear.weight, reader),
        _array(node.linear.bias, reader),
        _array(norm_weight, reader),
        None if norm is None else _array(norm.bias, reader),
    )


def _difference(node: LogitScore, weight: Weight, reader: Reader) -> Rows:
    """[1 ...]: a token's row of a head, less the other's: a GEMM of one row, not of all."""
    table = np.asarray(reader.read(weight.name))
    row = table[node.true_id : node.true_id + 1].astype(np.float32)
    if node.false_id is None:
        return row
    return np.asarray(row - table[node.false_id].astype(np.float32), np.float32)


def _matrix(weight: Weight, reader: Reader) -> Rows:
    return np.asarray(reader.read(weight.name)).astype(np.float32)


def _array(weight: Weight | None, reader: Reader) -> Rows | None:
    return None if weight is None else _matrix(weight, reader)
