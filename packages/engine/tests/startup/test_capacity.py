"""Capacity estimates against what a real start takes and admits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import pytest
import spaninfer_demo
from machines import BARE, WITH_KERNELS
from spaninfer_engine import Engine
from spaninfer_engine.config import EngineConfig
from spaninfer_engine.errors import ConfigError, NotBuilt
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.spec.tree import weights
from spaninfer_engine.startup.build import build
from spaninfer_engine.startup.capacity import KV_SHARE, Capacity, Place, capacity

DEMO = Path(spaninfer_demo.path())
GIB = 1 << 30
ON_HOST, ON_GPU = Place(BARE, GIB), Place(WITH_KERNELS, 24 * GIB)


def planned(
    path: Path,
    place: Place,
    lengths: Sequence[int] = (512,),
    *,
    whole: bool = True,
    **options: Any,
) -> Capacity:
    asked = EngineConfig(model=path, **options)
    with open_checkpoint(path, with_weights=whole) as checkpoint:
        return capacity(asked, checkpoint, place, lengths)


@pytest.mark.parametrize("options", [{}, {"quantize": "int8"}, {"quantize": "int4"}])
def test_weights_are_estimated_as_a_start_holds_them(options: dict[str, Any]) -> None:
    [room, *_] = planned(DEMO, ON_HOST, backend="cpu", **options).rooms

    with_towers = build(EngineConfig(model=DEMO, backend="cpu", memory="4MiB", **options))

    try:
        towers = sum(4 * prod(each.shape) for each in weights(with_towers.model.towers))
        assert room.weight_bytes == pytest.approx(with_towers.weight_bytes + towers, rel=0.03)
    finally:
        with_towers.runner.close()


def test_so_many_requests_are_what_the_memory_that_is_left_holds() -> None:
    [room, *_] = planned(DEMO, ON_HOST, (700, 4096), backend="cpu").rooms

    with Engine(
        DEMO, backend="cpu", memory=int(room.kv_bytes * KV_SHARE), max_len=700, max_running=1000
    ) as engine:
        [spans] = engine.resolved.num_spans
    assert room.requests[700] == spans // -(-700 // 32)
    assert room.requests[4096] < room.requests[700]


def test_the_longest_request_of_little_memory_is_what_a_start_chooses() -> None:
    [room, *_] = planned(DEMO, Place(BARE, 62 << 20), backend="cpu").rooms

    with Engine(DEMO, backend="cpu", memory=int(room.kv_bytes * KV_SHARE)) as engine:
        assert engine.context == room.longest
    assert 0 < room.longest < 4096


def test_formats_are_compared_where_none_was_requested() -> None:
    compared = {
        place: [(room.backend, room.quantize) for room in planned(DEMO, place).rooms]
        for place in (ON_HOST, ON_GPU)
    }

    assert compared[ON_HOST] == [("cpu", None), ("cpu", "int8"), ("cpu", "int4")]
    assert compared[ON_GPU] == [("cuda", each) for each in (None, "fp8", "int8", "int4")]
    assert len(planned(DEMO, ON_GPU, quantize="int8").rooms) == 1
    sizes = [room.weight_bytes for room in planned(DEMO, ON_HOST).rooms]
    assert sizes == sorted(sizes, reverse=True)


def test_config_json_is_enough(tmp_path: Path) -> None:
    bare = tmp_path / "config.json"
    bare.write_bytes((DEMO / "config.json").read_bytes())

    alone, whole = planned(tmp_path, ON_GPU, whole=False), planned(DEMO, ON_GPU)

    assert [room.weight_bytes for room in alone.rooms] == [
        room.weight_bytes for room in whole.rooms
    ]
    config = json.loads(bare.read_text()) | {"quantization_config": {"quant_method": "gptq"}}
    bare.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="fetch the model first"):
        planned(tmp_path, ON_GPU, whole=False)


def test_nothing_fits_into_less_than_the_weights() -> None:
    rooms = planned(DEMO, Place(BARE, 1 << 20), backend="cpu").rooms

    assert rooms
    assert all(room.kv_bytes < 0 for room in rooms)
    assert all((room.longest, room.requests) == (0, {512: 0}) for room in rooms)


def test_lengths_beyond_the_context_are_the_context() -> None:
    found = planned(DEMO, ON_HOST, (512, 5000, 1 << 40))

    assert found.context == 4096
    assert [*found.rooms[0].requests] == [512, 4096]


def test_an_encoder_keeps_nothing_between_steps(tmp_path: Path) -> None:
    config = {
        "architectures": ["BertModel"], "model_type": "bert", "hidden_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
        "vocab_size": 30, "max_position_embeddings": 64, "type_vocab_size": 2,
        "layer_norm_eps": 1e-12, "hidden_act": "gelu", "pad_token_id": 0,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(NotBuilt, match="keep nothing between steps"):
        planned(tmp_path, ON_HOST, whole=False)
