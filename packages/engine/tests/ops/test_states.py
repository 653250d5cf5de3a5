"""Operators of the delta rule on every backend, in pieces and batches, against the definition."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import spaninfer_op_reference as definition
from backends import BACKENDS, Backend
from contexts import metadata_of
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.ops.operation import GroupedRows, Use
from spaninfer_engine.ops.states import Piece, pieces
from spaninfer_engine.ops.step import Step
from spaninfer_engine.spec.delta_nodes import StateShape
from spaninfer_engine.spec.nodes import CacheGroup
from spaninfer_engine.spec.weight_nodes import Weight
from spaninfer_engine.step.batch import Run

STATE = StateShape(inputs=3, channels=20, heads=4, key_size=8, value_size=6)
GROUP = CacheGroup(0, (0, 1), 0, 0, 0, state=STATE)
KEY_HEADS = 2


def test_a_slice_is_one_piece_in_the_span_of_its_sequence() -> None:
    table = np.array([5, 5, 5, 5])

    assert pieces(Run(3, 8, 0, 0, 5), table, 4) == [Piece(3, 8, None, 5)]
    assert pieces(Run(0, 1, 0, 8, 9), table, 4) == [Piece(0, 1, 5, 5)]


def test_a_slice_is_cut_where_the_table_names_a_snapshot() -> None:
    table = np.array([5, 1, 5, 7, 5])

    found = pieces(Run(10, 28, 0, 1, 19), table, 4)

    assert found == [Piece(10, 17, 5, 1), Piece(17, 25, 1, 7), Piece(25, 28, 7, 5)]


def test_behind_a_shared_snapshot_another_span_is_written() -> None:
    assert pieces(Run(0, 4, 0, 8, 12), np.array([0, 6, 2]), 4) == [Piece(0, 4, 6, 2)]


def test_rows_of_groups_are_taken_part_by_part() -> None:
    weight = np.arange(12)[:, None]
    use = Use("weight", (Weight("w", (12, 1)),), view=GroupedRows((1, 2, 3), (0, 2)))

    assert use.assemble((weight,))[:, 0].tolist() == [0, 6, 3, 4, 5, 9, 10, 11]  # type: ignore[index]
    assert use.num_rows == 8


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_slices_read_and_leave_the_states_of_their_sequences(backend: Backend) -> None:
    """A prompt in three steps, one of which leaves a snapshot, beside another's decodes."""
    ops = backend.make()
    cache = ops.cache(GROUP, 6, 4)
    for part in cache[:2]:
        part[:] = np.nan
    lengths, table = (70, 3), np.array([[0, 3, *[0] * 18], [1] * 20])
    cuts = [(0, 1, 1 + 6, 70), (0, 1, 2, 3)]
    rows = [_operands(length, seed) for seed, length in enumerate(lengths)]
    rng = np.random.default_rng(7)
    mixed = [_narrow(rng.normal(size=(length, 20))) for length in lengths]
    weight = _narrow(rng.normal(size=(20, 4)))
    made: list[list[list[Any]]] = [[[], []], [[], []]]
    for bounds in zip(*(pairwise(each) for each in cuts), strict=True):
        taken = [slice(*each) for each in bounds]
        runs, first = [], 0
        for row, (start, stop) in enumerate(bounds):
            runs.append(Run(first, first + stop - start, row, start, stop))
            first += stop - start
        step = _step(cache, [p for run in runs for p in pieces(run, table[run.row], 4)], runs)
        operands = [
            put(np.concatenate([rows[row][i][taken[row]] for row in range(2)]))
            for i, put in enumerate(
                [partial(backend.put, ops)] * 3 + [partial(_in_float32, ops)] * 2
            )
        ]
        x = backend.put(ops, np.concatenate([mixed[row][taken[row]] for row in range(2)]))
        where = {"group": 0, "layer": 1}
        outs = (
            ops.delta_rule(step, *operands, **where),
            ops.convolve(step, x, weight=backend.put(ops, weight), **where),
        )
        for run in runs:
            for which, out in enumerate(outs):
                made[run.row][which].append(ops.to_host(out)[run.first : run.last])

    for row in range(2):
        expected, state = definition.delta_rule(*rows[row], np.zeros((4, 8, 6)))
        backend.check(ops, _back(ops, made[row][0]), expected)
        convolved, kept = definition.convolve(mixed[row], weight, np.zeros((3, 20)))
        backend.check(ops, _back(ops, made[row][1]), convolved)
        backend.check(ops, cache.values[1][row], state)
        backend.check(ops, cache.keys[1][row], kept)
    _, snapshot = definition.delta_rule(*(each[:8] for each in rows[0]), np.zeros((4, 8, 6)))
    backend.check(ops, cache.values[1][3], snapshot)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_gates_are_computed_in_float32(backend: Backend) -> None:
    ops, rng = backend.make(), np.random.default_rng(3)
    a, b = (_narrow(rng.normal(size=(5, 4))) for _ in range(2))
    a_log, dt_bias = np.log(rng.uniform(0.1, 16, 4)), rng.normal(size=4)
    held = {
        name: ops.pack([each.astype(np.float32)], ops.layout("delta_gates", name))
        for name, each in (("a_log", a_log), ("dt_bias", dt_bias))
    }

    made = ops.delta_gates(backend.put(ops, a), backend.put(ops, b), **held)

    for found, expected in zip(made, definition.delta_gates(a, b, a_log, dt_bias), strict=True):
        assert definition.relative_error(ops.to_host(found), expected) < 1e-5


def test_backend_cuda_refuses_states_that_its_kernels_do_not_take() -> None:
    pytest.importorskip("spaninfer_kernels_cuda", reason="needs the extra cuda")
    pytest.importorskip("torch")
    from spaninfer_engine.backends.cuda.fusions.linear_attention import refuse_states

    refuse_states([CacheGroup(0, (0,), 2, 64, 64), GROUP], (8, 0))

    with pytest.raises(ConfigError, match=r"compute capability 8.0, and the GPU has 7.5; choose"):
        refuse_states([GROUP], (7, 5))
    wide = replace(GROUP, state=StateShape(3, 8, 2, 256, 128))
    with pytest.raises(ConfigError, match=r"states of 256 x 128 behind a convolution of 4 taps"):
        refuse_states([wide], (9, 0))


def _operands(tokens: int, seed: int = 0) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    shapes = ((tokens, KEY_HEADS, 8), (tokens, KEY_HEADS, 8), (tokens, 4, 6), (tokens, 4))
    query, key, value, g = (_narrow(rng.normal(size=shape)) for shape in shapes)
    return query, key, value, -np.abs(g) / 4, _narrow(rng.uniform(size=(tokens, 4)))


def _in_float32(ops: Any, array: Any) -> Any:
    return ops.pack([array.astype(np.float32)], ops.layout("delta_gates", "a_log"))


def _narrow(array: Any) -> Any:
    """Return numbers that bfloat16 holds exactly."""
    return definition.to_bfloat16(array).astype(np.float64)


def _step(cache: Any, found: list[Piece], runs: list[Run]) -> Any:
    metadata = replace(
        metadata_of(*(run.last - run.first for run in runs)),
        caches=(cache,),
        states=[found],  # type: ignore[arg-type]
    )
    nothing = np.zeros(len(metadata.positions), np.int32)
    return Step(nothing, nothing[None], (), nothing[:0], metadata)


def _back(ops: Any, parts: list[Any]) -> Any:
    return ops.from_host(np.concatenate(parts))
