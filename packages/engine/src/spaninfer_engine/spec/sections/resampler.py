"""[vision] merger = "resampler" -> queries that read all patches of a frame."""

from __future__ import annotations

import math

from spaninfer_engine.spec.attention_nodes import FusedQkv
from spaninfer_engine.spec.sections.tower_reader import TowerReader
from spaninfer_engine.spec.tower_nodes import PatchPositions, Resampler, Square, Stretch
from spaninfer_engine.spec.weight_nodes import Linear, Norm, Weight


def read_resampler(reader: TowerReader, width: int, stretch: Stretch) -> Resampler:
    """Return the resampler of a tower whose rows have `width` channels."""
    scope, maker, hidden = reader.scope, reader.maker, reader.hidden
    count, heads = (scope.optional_integer("vision", key) for key in ("queries", "merger_heads"))
    if count is None or math.isqrt(count) ** 2 != count:
        raise scope.error("vision", "queries", f"{count} is no square; a resampler has one")
    if not heads or width % heads:
        raise scope.error("vision", "merger_heads", f"{width} channels do not make {heads} heads")
    qkv = Linear(
        Weight(reader.whole_name("merger_qkv"), (3 * width, width), 0, (width,) * 3),
        Weight(reader.whole_name("merger_qkv_bias"), (3 * width,), 0, (width,) * 3),
    )
    kv = maker.linear(reader.name("merger_kv"), width, hidden, split=0)
    proj = Weight(reader.whole_name("merger_down"), (width, width))
    return Resampler(
        query=Weight(reader.whole_name("merger_query"), (count, width)),
        positions=PatchPositions(
            Weight(reader.whole_name("merger_pos"), (count, width)),
            Square(math.isqrt(count), stretch),
        ),
        kv=None if hidden == width else kv,
        q_norm=_norm(reader, "merger_q_norm", width),
        kv_norm=_norm(reader, "merger_kv_norm", width),
        qkv=FusedQkv(qkv, "concat"),
        heads=heads,
        out=maker.linear(reader.name("merger_o"), width, width, bias=True, split=1),
        norm=_norm(reader, "merger_norm", width),
        down=Linear(proj, transposed=True),
    )


def _norm(reader: TowerReader, key: str, width: int) -> Norm:
    return reader.norm(reader.name(key), width)
