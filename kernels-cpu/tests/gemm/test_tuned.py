"""Tuned kernels: which candidates are timed, what is stored, and that results do not change."""

import json
from dataclasses import replace
from itertools import count

import numba.core.config
import numpy as np
import pytest
from spaninfer_kernels_cpu import (
    Compilers,
    Format,
    Trial,
    pack,
    shared_thread_pool,
    tune,
)
from spaninfer_kernels_cpu.codegen.compiled import cache_of_these_sources, discard_others
from spaninfer_kernels_cpu.codegen.isa_level import possible_levels
from spaninfer_kernels_cpu.gemm import tuned
from spaninfer_kernels_cpu.gemm.tuning import ROWS, Candidate, candidates, choose

INT8 = Format("int8", 32)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", str(tmp_path))
    return cache_of_these_sources()


def trial(clock=None, outputs=128):
    numbers = np.random.default_rng(0).standard_normal((outputs, 64), np.float32)
    more = {} if clock is None else {"clock": clock}
    return Trial([pack(numbers, INT8)], False, shared_thread_pool(), Compilers(), **more)


def never(_done, _total):
    raise AssertionError("nothing is to be timed")


def remembered(cache, content, outputs=128):
    cache.write(tuned._name(trial(outputs=outputs).weights, False), content)


def test_times_of_an_earlier_start_are_used(cache):
    found = candidates(INT8, rounded=False, levels=possible_levels())
    seconds = {each.name: dict.fromkeys(ROWS, 1.0) for each in found}
    other = next(each for each in found if each.micro.one != found[0].micro.one)
    seconds[other.name] = dict.fromkeys(ROWS, 0.5)
    remembered(cache, json.dumps(seconds).encode())

    result = tune(trial(), 10.0, never)

    assert result.was_read
    assert result.choice.few == other
    assert result.choice == choose(found, seconds)


def test_times_of_other_shapes_are_not_used(cache):
    remembered(cache, b"{}", outputs=64)

    with pytest.raises(AssertionError, match="nothing is to be timed"):
        tune(trial(), 10.0, never)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"\xff", b'{"avx2": 5}', b'{"no such level": {}}', b'{"avx2": {"1": 0.5}}',
     b'{"avx2": {"1": 0, "4": 1, "64": 1}}'],
)  # fmt: skip
def test_a_damaged_file_is_as_none(cache, content):
    remembered(cache, content)

    with pytest.raises(AssertionError, match="nothing is to be timed"):
        tune(trial(), 10.0, never)


def test_times_of_other_sources_are_deleted(tmp_path):
    tmp_path.chmod(0o755)
    for name in ("gemm.0123.abc.times", "gemm.0123.kernel", "notes.txt"):
        (tmp_path / name).touch()

    discard_others(tmp_path)

    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_without_budget_the_default_alone_is_timed():
    found = candidates(INT8, rounded=False, levels=possible_levels())

    seconds = trial().seconds(found, -1.0, lambda _done, _total: None)

    assert set(seconds) == {found[0].name}
    assert set(seconds[found[0].name]) == set(ROWS)


@pytest.mark.slow
def test_kernels_that_give_other_results_are_not_chosen():
    default, other, *_ = candidates(INT8, rounded=False, levels=possible_levels())
    without_bias = {
        name: replace(micro, codes=replace(micro.codes, shift="none"))
        for name in ("one", "small", "many")
        for micro in [getattr(default.micro, name)]
    }
    wrong = Candidate("wrong", replace(default.micro, **without_bias))
    ticks = count()

    seconds = trial(clock=lambda: float(next(ticks))).seconds(
        [default, wrong, other], 1e9, lambda _done, _total: None
    )

    assert set(seconds) == {default.name, other.name}
