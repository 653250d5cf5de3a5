"""Experts in GGUF files: names, config keys, and stacks that are read expert by expert."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from spaninfer_op_reference import concatenate_rows

from spaninfer_engine.load.gguf.metadata import Metadata
from spaninfer_engine.load.tensors.made import MadeArray
from spaninfer_engine.load.tensors.quantised import QuantizedEntry
from spaninfer_engine.load.tensors.reader import Entry

STACKS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")

EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{e}.gate_proj",
    "ffn_up_exps": "mlp.experts.{e}.up_proj",
    "ffn_down_exps": "mlp.experts.{e}.down_proj",
}
SHARED = {
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
QWEN_SHARED = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{e}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{e}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{e}.w2",
}


@dataclass(frozen=True)
class Reshaped:
    """An entry whose axes of one channel GGUF leaves out, with the shape that it is read in."""

    stored: Entry
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype:
        """The number format."""
        return self.stored.dtype

    def read(self) -> np.ndarray:
        """The array in this shape."""
        return self.stored.read().reshape(self.shape)


GRANITE_SHARED = {
    "ffn_gate_shexp": "shared_mlp.gate_proj",
    "ffn_up_shexp": "shared_mlp.up_proj",
    "ffn_down_shexp": "shared_mlp.output_linear",
}


def with_shared_in_one(_: Metadata, entries: dict[str, Entry]) -> dict[str, Entry]:
    """Return the entries with gate and up of Granite's shared experts in one, gate first."""
    joined = dict(entries)
    for name in entries:
        if name.endswith(".shared_mlp.gate_proj.weight"):
            prefix = name.removesuffix("gate_proj.weight")
            parts = joined.pop(name), joined.pop(f"{prefix}up_proj.weight")
            joined[f"{prefix}input_linear.weight"] = _rows_of(*parts)
    return joined


def _rows_of(first: Entry, second: Entry) -> Entry:
    shape = (first.shape[0] + second.shape[0], *first.shape[1:])
    if not (isinstance(first, QuantizedEntry) and isinstance(second, QuantizedEntry)):
        return MadeArray(shape, first.dtype, lambda: np.concatenate([first.read(), second.read()]))
    one, other = first, second
    if one.format != other.format:
        return MadeArray(shape, one.dtype, lambda: np.concatenate([one.read(), other.read()]))
    return QuantizedEntry(
        one.format,
        shape,
        one.dtype,
        one.num_bytes + other.num_bytes,
        lambda: concatenate_rows([one.load(), other.load()]),
    )


def counts(metadata: Metadata) -> tuple[int, int]:
    """Return how many experts a layer has, and how many see a token."""
    return metadata.count("expert_count"), metadata.count("expert_used_count")


def inner_channels(metadata: Metadata) -> int:
    """Return the inner channels of an expert."""
    return metadata.count("expert_feed_forward_length")


def num_shared(metadata: Metadata, tensors: Mapping[str, Any], layer: int) -> int:
    """Return of how many experts' width the shared MLP of a layer is; 0 without one."""
    shared = tensors.get(f"blk.{layer}.ffn_gate_shexp.weight")
    return 0 if shared is None else int(shared.shape[0]) // inner_channels(metadata)
