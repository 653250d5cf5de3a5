"""Time linear attention of Qwen3-Next's sizes beside the same mathematics in numpy: JSON lines.

    python benchmarks/bench_delta_rule.py

One record per operator and number of tokens of each of so many requests: 16 heads of queries and
keys, 32 of values, states of 128 x 128, a convolution of 8,192 channels by 4 taps. CPU time of
one thread in microseconds, the median of turns in which kernel and numpy follow each other;
`copy_us` is what the thread takes to copy the states.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from spaninfer_kernels_cpu import (
    ITEMS,
    Call,
    DeltaInputs,
    DeltaRows,
    Matrix,
    Script,
    StatePlan,
    ThreadPool,
    convolve_call,
    delta_rule_call,
    plan_states,
)

KEY_HEADS, HEADS, SIZE, TAPS = 16, 32, 128, 4
CHANNELS = (2 * KEY_HEADS + HEADS) * SIZE
CASES = ((1, 1), (8, 1), (1, 8), (1, 16), (1, 64), (1, 512))
LAYERS, TURNS = 8, 9  # states of several layers, so that a cache does not hold them


class Case(NamedTuple):
    """So many requests with so many tokens each."""

    requests: int
    tokens: int


def main() -> None:
    """Print a record per case and operator."""
    with ThreadPool(1) as thread_pool:
        for requests, tokens in CASES:
            for record in measure(Case(requests, tokens), thread_pool):
                print(json.dumps(record), flush=True)


def measure(case: Case, thread_pool: ThreadPool) -> Iterator[dict[str, float]]:
    """Yield the records of both operators."""
    rng = np.random.default_rng(0)
    rows = case.requests * case.tokens
    pieces = np.array(
        [(n * case.tokens, (n + 1) * case.tokens, n, n) for n in range(case.requests)], np.int32
    )
    begins = plan_states(pieces)
    words = np.array([pieces.ctypes.data, begins.ctypes.data])
    plan = StatePlan(ITEMS, words.ctypes.data, words.ctypes.data + 8)

    def runs(calls: list[Call]) -> Callable[[int], None]:
        scripts = [Script([call]) for call in calls]
        return lambda layer: thread_pool.run(scripts[layer], [rows, 0, case.requests])

    states = rng.standard_normal((LAYERS, case.requests, HEADS, SIZE, SIZE), np.float32)
    inputs = DeltaInputs(
        rng.standard_normal((rows, KEY_HEADS, SIZE), np.float32),
        rng.standard_normal((rows, KEY_HEADS, SIZE), np.float32),
        rng.standard_normal((rows, HEADS, SIZE), np.float32),
        -rng.uniform(size=(rows, HEADS)).astype(np.float32),
        rng.uniform(size=(rows, HEADS)).astype(np.float32),
    )
    arrays = (inputs.query, inputs.key, inputs.value, inputs.g, inputs.beta)
    at, out = DeltaRows(*map(Matrix.of, arrays)), np.empty_like(inputs.value)
    found = _in_turns(
        runs([delta_rule_call(at, KEY_HEADS, each, plan, out=Matrix.of(out)) for each in states]),
        lambda layer: _delta_rule_in_numpy(inputs, states[layer], case),
    )
    copied = np.empty_like(states)
    copy = _in_turns(lambda layer: np.copyto(copied[layer], states[layer]))["us"]
    yield {"operator": "delta_rule", **case._asdict(), **found, "copy_us": copy}
    x = rng.standard_normal((rows, CHANNELS), np.float32)
    weight = rng.standard_normal((TAPS, CHANNELS), np.float32)
    kept = np.zeros((LAYERS, case.requests, TAPS - 1, CHANNELS), np.float32)
    mixed = np.empty_like(x)
    places = {"out": Matrix.of(mixed), "silu": True}
    found = _in_turns(
        runs([convolve_call(Matrix.of(x), weight, each, plan, **places) for each in kept]),
        lambda layer: _convolve_in_numpy(x, weight, kept[layer], case),
    )
    yield {"operator": "convolve", **case._asdict(), **found}


def _in_turns(*parts: Callable[[int], object]) -> dict[str, float]:
    """Return the microseconds of a layer of the first part, and how many times the last needs."""
    times: list[list[float]] = [[] for _ in parts]
    for part in parts:
        part(0)  # compiles
    for _ in range(TURNS):
        for part, taken in zip(parts, times, strict=True):
            start = time.thread_time()
            for layer in range(LAYERS):
                part(layer)
            taken.append((time.thread_time() - start) / LAYERS * 1e6)
    medians = [round(statistics.median(each), 1) for each in times]
    if len(medians) == 1:
        return {"us": medians[0]}
    return {"us": medians[0], "numpy_us": medians[1], "ratio": round(medians[1] / medians[0], 2)}


def _delta_rule_in_numpy(inputs: DeltaInputs, states: np.ndarray, case: Case) -> None:
    for request, state in enumerate(states):
        rows = slice(request * case.tokens, (request + 1) * case.tokens)
        query, key, value = (each[rows] for each in (inputs.query, inputs.key, inputs.value))
        parts = (query, key, value, inputs.g[rows], inputs.beta[rows])
        learn = _token if case.tokens == 1 else _chunks
        learn(*parts, state)


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def _token(query, key, value, g, beta, state):  # type: ignore[no-untyped-def]
    query, key = (np.repeat(_unit(each[0]), HEADS // KEY_HEADS, axis=0)[:, None]
                  for each in (query, key))  # fmt: skip
    state *= np.exp(g[0])[:, None, None]
    state += key.swapaxes(1, 2) * (beta[0][:, None, None] * (value[0][:, None] - key @ state))
    return (query @ state)[None, :, 0] * SIZE**-0.5


def _chunks(query, key, value, g, beta, state):  # type: ignore[no-untyped-def]
    query, key = (
        np.repeat(_unit(each).swapaxes(0, 1), HEADS // KEY_HEADS, axis=0) for each in (query, key)
    )
    out = []
    for first in range(0, len(value), 64):
        part = slice(first, first + 64)
        q, k, v = query[:, part] * SIZE**-0.5, key[:, part], value[part].swapaxes(0, 1)
        sums, rate = np.cumsum(g[part].T, -1), beta[part].T
        below = np.tri(sums.shape[1], dtype=bool)
        between = sums[:, :, None] - sums[:, None, :]
        decay = np.exp(np.where(below, between, -np.inf))
        since = np.exp(sums)[..., None]
        system = np.tril(rate[..., None] * decay * (k @ k.swapaxes(1, 2)), -1)
        known = rate[..., None] * (v - since * (k @ state))
        written = np.linalg.solve(system + np.eye(sums.shape[1], dtype=np.float32), known)
        out.append(since * (q @ state) + (decay * (q @ k.swapaxes(1, 2))) @ written)
        last = sums[:, -1:, None]
        k = k * np.exp(last - sums[..., None])
        state[:] = np.exp(last) * state + k.swapaxes(1, 2) @ written
    return out


def _convolve_in_numpy(x: np.ndarray, weight: np.ndarray, kept: np.ndarray, case: Case) -> None:
    for request, before in enumerate(kept):
        rows = x[request * case.tokens : (request + 1) * case.tokens]
        inputs, y = np.concatenate([before, rows]), np.zeros_like(rows)
        for tap in range(TAPS):
            y += inputs[tap : tap + len(rows)] * weight[tap]
        before[:] = inputs[len(rows) :]
        y = y / (1 + np.exp(-y))


if __name__ == "__main__":
    main()
