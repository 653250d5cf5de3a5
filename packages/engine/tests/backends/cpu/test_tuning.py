"""Tuning of a model: which weights are timed, and that answers do not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from random_llama import write_model
from spaninfer_engine import Engine, EngineConfig, SamplingParams
from spaninfer_engine.backends.cpu.tuning import MIN_BYTES, GemmTuner
from spaninfer_engine.tools.cpu_tuning import tune
from spaninfer_host_limits import usable_cpus
from spaninfer_kernels_cpu import Compilers, Format, MicroKernels, Packed, active_level, pack

INT8, FLOAT32 = Format("int8", 32), Format("float32")
SAMPLING = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2)


def packed(format: Format, outputs: int, channels: int = 256) -> Packed:
    numbers = np.random.default_rng(0).standard_normal((outputs, channels), np.float32)
    return pack(numbers, format)


def run(tuner: GemmTuner) -> tuple[Any, ...]:
    """Time the default alone: nothing else is within the budget."""
    return tuner.run(Compilers(), lambda _done, _total: None, budget_s=-1.0, anew=True)


@pytest.mark.parametrize("asked", [None, False])
def test_small_models_are_tuned_on_request_only(asked: bool | None):
    tuner = GemmTuner(asked)
    tuner.note(packed(INT8, 64), rounded=False)

    assert run(tuner) == ()
    assert tuner.micro(INT8, rounded=False) is None


def test_weights_that_are_shared_count_once():
    weight = packed(FLOAT32, 1024, 4096)
    tuner = GemmTuner()
    for _ in range(MIN_BYTES // weight.panels.nbytes + 1):
        tuner.note(weight, rounded=False)

    assert run(tuner) == ()


def test_kernels_are_chosen_for_the_formats_that_most_weights_have():
    tuner = GemmTuner(asked=True)
    for format, outputs in ((INT8, 8192), (FLOAT32, 16)):
        tuner.note(packed(format, outputs), rounded=False)

    (tuned,) = run(tuner)

    assert tuned.format == INT8
    expected = MicroKernels.of(INT8, rounded=False, level=active_level())
    assert tuner.micro(INT8, rounded=False) == tuned.choice.micro == expected
    assert tuner.micro(INT8, rounded=True) is None
    assert tuner.micro(FLOAT32, rounded=False) is None


@pytest.mark.slow
def test_tuned_kernels_give_the_same_answers_to_the_bit(tmp_path: Path):
    write_model(tmp_path / "llama", 1, bfloat16)

    def answers(**options: Any) -> list[Any]:
        with Engine(tmp_path / "llama", backend="cpu", quantize="int8", **options) as engine:
            made = engine.generate([[5, 900, 31, 4000, 77], [1, 2]], SAMPLING)
        return [(each.token_ids, each.logprobs) for each in made]

    before = answers(tune=False)
    timed = tune(EngineConfig(model=tmp_path / "llama", backend="cpu", quantize="int8", tune=True))
    rows = timed.rows

    assert answers(tune=True, memory=1 << 22) == before
    assert [row.is_default for row in rows].count(True) == 1
    assert sum(row.for_few for row in rows) == sum(row.for_many for row in rows) == 1
    assert all(min(row.seconds.values()) > 0 for row in rows if row.seconds is not None)
    assert {row.format for row in rows} == {"int8, groups of 32"}
    assert set(timed.threads) == {usable_cpus(), max(1, usable_cpus() // 2)}
