"""gpt-oss in GGUF files: experts as Hugging Face stacks them, the rows of gate and up in turn."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from spaninfer_op_reference import QuantizedWeight, interleave_rows, stack_weights

from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load.gguf.experts import counts, inner_channels
from spaninfer_engine.load.gguf.metadata import Metadata
from spaninfer_engine.load.gguf.rope import linear_or_yarn
from spaninfer_engine.load.tensors.made import MadeArray
from spaninfer_engine.load.tensors.quantised import QuantizedEntry
from spaninfer_engine.load.tensors.reader import Entry

GPT_OSS = {
    "attn_sinks": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
    "ffn_gate_exps": "mlp.experts.{e}.gate_proj",
    "ffn_up_exps": "mlp.experts.{e}.up_proj",
    "ffn_down_exps": "mlp.experts.{e}.down_proj",
}
_SINKS = ".self_attn.sinks.weight"
_PART = re.compile(r"(.+\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.(weight|bias)")


def gpt_oss(metadata: Metadata, tensors: Mapping[str, Entry]) -> dict[str, Any]:
    """gpt-oss, whose experts are stacked as those of its MXFP4 checkpoints are."""
    experts, chosen = counts(metadata)
    scaling = linear_or_yarn(metadata)
    return {
        "num_local_experts": experts,
        "num_experts_per_tok": chosen,
        "intermediate_size": inner_channels(metadata),
        "sliding_window": metadata.count("attention.sliding_window"),
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "rope_scaling": None if scaling is None else {**scaling, "truncate": False},
        "quantization_config": {"quant_method": "mxfp4"},
    }


def with_stacked_experts(metadata: Metadata, entries: dict[str, Entry]) -> dict[str, Entry]:
    """Return the entries with the experts of a layer stacked, and sinks without a suffix."""
    stacked: dict[str, Entry] = {}
    layers: dict[str, dict[tuple[str, str], dict[int, Entry]]] = {}
    for name, stored in entries.items():
        if found := _PART.fullmatch(name):
            part = layers.setdefault(found[1], {}).setdefault((found[3], found[4]), {})
            part[int(found[2])] = stored
        else:
            stacked[name.removesuffix(".weight") if name.endswith(_SINKS) else name] = stored
    for prefix, parts in layers.items():
        for kind, end in (("weight", ""), ("bias", "_bias")):
            gates, ups, downs = (
                _in_order(metadata, f"{prefix} {part} {kind}", parts.get((part, kind), {}))
                for part in ("gate", "up", "down")
            )
            stacked[f"{prefix}.gate_up_proj{end}"] = _in_turn(gates, ups)
            stacked[f"{prefix}.down_proj{end}"] = _stack(downs)
    return stacked


def _in_order(metadata: Metadata, what: str, found: Mapping[int, Entry]) -> list[Entry]:
    experts, _ = counts(metadata)
    if sorted(found) != list(range(experts)):
        raise CheckpointError(
            f"{metadata.source}: {what} exists for {len(found)} experts; expected are {experts}"
        )
    return [found[expert] for expert in range(experts)]


def _stack(entries: Sequence[Entry]) -> Entry:
    first, shape = entries[0], (len(entries), *entries[0].shape)
    codes = [entry for entry in entries if isinstance(entry, QuantizedEntry)]
    if len(codes) == len(entries):
        return _coded(codes, shape, lambda: stack_weights([each.load() for each in codes]))
    return MadeArray(shape, first.dtype, lambda: np.stack([entry.read() for entry in entries]))


def _in_turn(gates: Sequence[Entry], ups: Sequence[Entry]) -> Entry:
    """Return a stack[E 2I ...] of gates[E I ...] and ups, row by row."""
    first, second = _stack(gates), _stack(ups)
    experts, rows, *rest = first.shape
    shape = (experts, 2 * rows, *rest)
    match first, second:
        case QuantizedEntry(format=one), QuantizedEntry(format=other) if one == other:
            pair = first, second
            return _coded(pair, shape, lambda: interleave_rows(first.load(), second.load()))

    def make() -> np.ndarray:
        return np.stack([first.read(), second.read()], axis=2).reshape(shape)

    return MadeArray(shape, first.dtype, make)


def _coded(
    parts: Sequence[QuantizedEntry], shape: tuple[int, ...], load: Callable[[], QuantizedWeight]
) -> QuantizedEntry:
    num_bytes = sum(each.num_bytes for each in parts)
    return QuantizedEntry(parts[0].format, shape, parts[0].dtype, num_bytes, load)
