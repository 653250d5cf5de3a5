"""Decisions about KV cache offloading."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from spaninfer_engine.cache.memory_plan import Stored
from spaninfer_engine.config import EngineConfig
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.spec.nodes import CacheGroup
from spaninfer_engine.startup.kv_offload import STAGING_BYTES, decide_kv_offload, offload_decisions

GROUPS = (CacheGroup(0, (0, 1), 1, 8, 8), CacheGroup(1, (2,), 1, 8, 8, window=16))
SPAN_BYTES = 3 * 2 * 8 * 4 * 4  # layers, keys and values, channels, bytes, tokens


def decide(*, on_host: bool = False, **options: Any) -> Any:
    asked = EngineConfig(model="any", **options)
    return decide_kv_offload(asked, GROUPS, 4, Stored(32), on_host=on_host)


def test_nothing_is_offloaded_unasked() -> None:
    assert decide() is None
    assert decide(kv_offload=0) is None


def test_every_group_gets_as_many_slots_as_fit_together() -> None:
    made = decide(kv_offload=10 * SPAN_BYTES + 1)

    assert (made.num_slots, made.folder) == ((10, 10), None)


def test_a_disk_alone_gets_slots_to_pass_through(tmp_path: Path) -> None:
    made = decide(kv_disk=tmp_path, kv_disk_size="1GiB", on_host=True)

    assert made.num_slots == (STAGING_BYTES // SPAN_BYTES,) * 2
    assert (made.folder, made.disk_bytes) == (tmp_path, 1 << 30)


def test_spans_stay_without_limit_or_as_long_as_requested(tmp_path: Path) -> None:
    assert decide(kv_disk=tmp_path).ttl_s == math.inf
    made = decide(kv_disk=tmp_path, kv_ttl_s=3600)

    assert made.ttl_s == 3600
    [row] = offload_decisions(made, 4)
    assert row.value.endswith("on disk, until unused for 3,600 s")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_offload": "1GiB", "on_host": True}, "raise --memory instead, or give --kv-disk"),
        ({"kv_offload": "1MiB", "on_host": True}, "--kv-offload is 1,048,576 bytes of host memory"),
        ({"kv_offload": "1GiB", "prefix_cache": False}, "the prefix cache is off"),
        ({"kv_disk": "spans", "prefix_cache": False}, "the prefix cache is off"),
        ({"kv_disk_size": "1GiB"}, "without a folder; give --kv-disk"),
        ({"kv_offload": SPAN_BYTES}, "a span takes 768, and at least two must fit"),
        ({"kv_offload": 1 << 60}, "lower it"),
        ({"kv_offload": "much"}, "'much' is not a size"),
        ({"kv_disk": "spans", "kv_disk_size": "much"}, "'much' is not a size"),
        ({"kv_ttl_s": 60}, "neither keeps any; give --kv-offload or --kv-disk"),
        *(
            ({"kv_disk": "spans", "kv_ttl_s": ttl_s}, "allowed is a finite number above 0")
            for ttl_s in (0, -1.5, math.inf, math.nan, True, "1h")
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_way_out(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        decide(**options)
