"""Whole engines with KV cache offloading: loaded keys and values are those that were computed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from answers import check, greedily
from assembled import wait_until
from cases import Case
from oracle import prompt
from spaninfer_engine import Engine
from spaninfer_engine.config import BackendName, KVDType
from spaninfer_engine.core.stats import OffloadStats
from spaninfer_engine.request.request import Placement
from stepping import SPAN_LEN

Load = Callable[[str], Case]

LONG = "Once upon a time, there was an old king who lived in a tower by the sea. " * 2
OTHERS = [f"{letter} {LONG}" for letter in "ABCD"]


def offloaded(engine: Engine) -> OffloadStats:
    found = engine.stats().offload
    assert found is not None
    return found


def spans_on_disk(folder: Path) -> list[Path]:
    return list(folder.rglob("*.span"))


def has_expired(offload: OffloadStats) -> bool:
    """Every copy of a span, in host memory and on disk, was made and is gone."""
    return offload.expired == offload.stored + offload.written > offload.stored > 0


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("llama", "reference"),
        ("gemma3", "torch"),  # two cache groups, one with a window
        ("gemma3", "cpu"),
        ("deepseek_v3", "torch"),  # values are a view of keys
        ("deepseek_v3", "cpu"),
    ],
)
def test_a_prefix_from_host_memory_or_disk_gives_tokens_of_the_oracle(
    name: str, backend: BackendName, load: Load, tmp_path: Path
) -> None:
    case = load(name)
    first, *others = (prompt(case.prompt_len, seed=seed) for seed in range(6))
    tiers = {"kv_offload": "8MiB", "kv_disk": tmp_path / "spans", "requests": 1.5}

    with case.engine(backend=backend, **tiers) as engine:
        for token_ids in (first, *others):
            engine.generate(token_ids, greedily(8))
        from_host = engine.generate(first, greedily(8))
        in_host = offloaded(engine)
    with case.engine(backend=backend, **tiers) as engine:
        from_disk = engine.generate(first, greedily(8))
        on_disk = offloaded(engine)

    cached = (len(first) - 1) // SPAN_LEN * SPAN_LEN
    assert (from_host.usage.cached_len, from_disk.usage.cached_len) == (cached, cached)
    assert in_host.host_hit_tokens > 0
    assert (on_disk.disk_hit_tokens, on_disk.host_hit_tokens) == (cached, 0)
    check(from_host, case)
    check(from_disk, case)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "uint4"])
def test_so_do_keys_and_values_in_fewer_bits(kv_dtype: KVDType, tmp_path: Path) -> None:
    def engine(**options: object) -> Engine:
        return Engine("demo", backend="cpu", kv_dtype=kv_dtype, span_len=8, max_len=128, **options)

    with engine(memory="8MiB") as shared:
        expected = [shared.generate(LONG, greedily(12)).token_ids for _ in range(2)]
    answers = []
    for _ in range(2):
        with engine(memory="8MiB", kv_disk=tmp_path / "spans") as again:
            answers.append(again.generate(LONG, greedily(12)))
            read = offloaded(again).read

    assert answers[1].usage.cached_len > 0
    assert read > 0
    assert [answer.token_ids for answer in answers] == expected


def demo(folder: Path, **options: object) -> Engine:
    return Engine(
        "demo",
        **{"backend": "reference", "memory": "8MiB", "max_len": 128, "span_len": 8, **options},
        kv_disk=folder,
    )


def test_another_kv_dtype_span_length_or_model_reads_nothing(tmp_path: Path) -> None:
    with demo(tmp_path) as engine:
        engine.generate(LONG, greedily(4))
    asked: list[dict[str, object]] = [
        {"span_len": 4},
        {"backend": "cpu"},
        {"backend": "cpu", "kv_dtype": "bfloat16"},
        {"weights": "dummy"},
    ]

    for options in asked:
        with demo(tmp_path, **options) as engine:
            assert engine.generate(LONG, greedily(4)).usage.cached_len == 0

    assert len(list(tmp_path.iterdir())) == 1 + len(asked)


def test_tenants_share_nothing_on_disk(tmp_path: Path) -> None:
    found = []
    for tenant in ("one", "other", "one"):
        with demo(tmp_path) as engine:
            handle, _ = engine.start_request(LONG, greedily(4), Placement(tenant=tenant))
            engine.sync(handle)
            found.append(offloaded(engine).disk_hit_tokens)

    assert found[:2] == [0, 0]
    assert found[2] > 0


def test_an_engine_may_be_closed_while_spans_are_written_and_read(tmp_path: Path) -> None:
    with demo(tmp_path) as engine:
        engine.generate(OTHERS, greedily(8))
    written = len(spans_on_disk(tmp_path))
    with demo(tmp_path) as engine:
        for each in OTHERS:
            engine.start_request(each, greedily(60))

    with demo(tmp_path) as engine:
        answers = engine.generate(OTHERS, greedily(8))

    assert written > 0
    assert all(answer.usage.cached_len > 0 for answer in answers)


def test_spans_are_written_while_the_engine_is_idle(tmp_path: Path) -> None:
    with demo(tmp_path) as engine:
        num_spans = engine.generate(LONG, greedily(4)).usage.prompt_len // 8

        # A file is there before it is counted, and the answer's last span may be written behind it.
        assert num_spans > 1
        wait_until(lambda: len(spans_on_disk(tmp_path)) == offloaded(engine).written >= num_spans)


def test_a_reset_of_the_prefix_cache_hides_every_tier_until_the_next_start(tmp_path: Path) -> None:
    found = []
    with demo(tmp_path) as engine:
        for _ in range(2):
            found.append(engine.generate(LONG, greedily(4)).usage.cached_len)
        engine.reset_prefix_cache()
        for _ in range(2):
            found.append(engine.generate(LONG, greedily(4)).usage.cached_len)
    with demo(tmp_path) as engine:
        found.append(engine.generate(LONG, greedily(4)).usage.cached_len)

    cached = found[1]
    assert found == [0, cached, 0, cached, cached]
    assert cached > 0


def test_files_expire_while_the_engine_is_idle_and_before_the_next_start(tmp_path: Path) -> None:
    with demo(tmp_path, kv_ttl_s=0.05) as engine:
        engine.generate(LONG, greedily(4))
        wait_until(lambda: has_expired(offloaded(engine)) and not spans_on_disk(tmp_path))
        idle = offloaded(engine)
    with demo(tmp_path, kv_ttl_s=3600) as engine:
        engine.generate(LONG, greedily(4))
    for path in spans_on_disk(tmp_path):
        os.utime(path, (path.stat().st_mtime - 3600,) * 2)
    with demo(tmp_path, kv_ttl_s=3600) as engine:
        cached_len = engine.generate(LONG, greedily(4)).usage.cached_len

    assert (idle.host_spans, idle.disk_bytes) == (0, 0)
    assert cached_len == 0
