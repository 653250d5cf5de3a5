"""Profiles by operator, which account for all of a step's time."""

from __future__ import annotations

import numpy as np
from spaninfer_kernels_cpu import (
    OUTSIDE,
    Format,
    Gemm,
    Matrix,
    Script,
    ThreadPool,
    aligned,
    operator_times,
    pack,
)


def test_operators_and_what_is_outside_of_scripts_add_up_to_the_step():
    rng = np.random.default_rng(0)
    x, out = rng.standard_normal((1, 64), np.float32), np.zeros((1, 192), np.float32)
    gemm = Gemm(pack(rng.standard_normal((192, 64), np.float32), Format("int8", 32)))
    scratch = aligned((gemm.scratch_bytes,), np.uint8)
    calls = gemm.calls(Matrix.of(x), out=Matrix.of(out), scratch=scratch.ctypes.data)
    model, other = Script(calls), Script(calls[:1])
    with ThreadPool(2) as thread_pool:
        with thread_pool.traced() as trace:
            for _ in range(4):
                thread_pool.run(model, [1])
                thread_pool.run(other, [1])
        thread_pool.run(model, [1])

    found = {each.operator: each for each in operator_times(trace)}

    begins = np.array([run.began for run in trace.runs[::2]])
    whole = sum(each.elapsed for each in found.values())
    names = ["prepare_activations.prepare", "gemm of 192 outputs, 0.0138 MB", OUTSIDE]
    assert list(found) == names
    assert [found[name].calls for name in names] == [2, 1, 1]
    assert found[names[1]].num_bytes == gemm.weight.panels.nbytes
    # Ends of scripts and of their last tasks differ by what it takes to come back to Python.
    assert (whole <= np.diff(begins)).all()
    assert (found[names[1]].busy <= 2 * found[names[1]].elapsed).all()


def test_a_trace_ends_before_the_script_for_whose_tasks_there_is_no_room():
    rng = np.random.default_rng(0)
    x, out = rng.standard_normal((1, 64), np.float32), np.zeros((1, 192), np.float32)
    gemm = Gemm(pack(rng.standard_normal((192, 64), np.float32), Format("int8", 32)))
    scratch = aligned((gemm.scratch_bytes,), np.uint8)
    script = Script(gemm.calls(Matrix.of(x), out=Matrix.of(out), scratch=scratch.ctypes.data))

    def traced(capacity: int) -> int:
        with ThreadPool(1) as thread_pool, thread_pool.traced(capacity) as trace:
            for _ in range(10):
                thread_pool.run(script, [1])
        return len(trace.runs)

    with ThreadPool(1) as thread_pool, thread_pool.traced() as trace:
        thread_pool.run(script, [1])
    tasks = len(trace.threads[0].call)
    assert [traced(tasks * runs) for runs in (1, 4, 11)] == [0, 3, 10]


def test_a_trace_without_scripts_has_no_operators():
    with ThreadPool(1) as thread_pool, thread_pool.traced() as trace:
        pass

    assert operator_times(trace) == []
