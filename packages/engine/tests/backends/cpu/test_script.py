"""Scripts of calls: how often they are recorded."""

from __future__ import annotations

import numpy as np
import pytest
from families import FAMILIES
from greedy import Greedy
from oracle import Oracle, prompt
from runners import runner_on
from spaninfer_engine.backends.cpu import script
from spaninfer_engine.backends.cpu.ops import CpuOps
from spaninfer_engine.backends.cpu.script import LastRun, is_worth_waking
from spaninfer_engine.program.bind import bind
from spaninfer_engine.program.lower import lower
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.run.runner import Runner
from spaninfer_engine.step.plan import NewSequence, Slice, StepPlan, TableUpdate
from spaninfer_kernels_cpu import ThreadPool
from stepping import Model

LONG, MANY = 40, 20  # tokens of one prompt; requests of one token


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(Oracle(FAMILIES["qwen3"], seed=3).save(tmp_path_factory.mktemp("model")))


def _runner(model: Model) -> Runner:
    ops = CpuOps()
    return runner_on(
        bind(lower(model.decoder), ops, model.checkpoint.reader), ops, Greedy(), model.decoder,
        span_len=4, num_spans=[60], max_len=LONG + 8, max_running=MANY + 1,
    )  # fmt: skip


def _entries(lengths: dict[int, int]) -> tuple[tuple[NewSequence, ...], tuple[TableUpdate, ...]]:
    """Return requests by id and length, each with spans of its own."""
    entries, grown, first = [], [], 0
    for number, length in lengths.items():
        entries.append(NewSequence(number, np.array(prompt(length)), SamplingParams(), seed=0))
        count = -(-length // 4)
        grown.append(TableUpdate(number, 0, 0, tuple(range(first, first + count))))
        first += count
    return tuple(entries), tuple(grown)


def test_loads_in_turn_do_not_have_calls_written_down_again(model, monkeypatch):
    written = []
    monkeypatch.setattr(script, "Script", lambda calls, make=script.Script: (
        written.append(len(calls)) or make(calls)
    ))  # fmt: skip
    runner = _runner(model)
    written.clear()  # of its warm-up
    entered, grown = _entries({0: LONG, **dict.fromkeys(range(1, MANY + 1), 1)})
    long = (Slice(0, 0, LONG, LONG - 1, True),)  # many rows, of which one is wanted
    many = tuple(Slice(n, 0, 1, 0, True) for n in range(1, MANY + 1))  # fewer, all of them wanted

    runner.run(StepPlan(1, long, entered, grown))
    runner.run(StepPlan(2, many))
    links = len(written)
    first, _ = (runner.run(StepPlan(3 + n, each)) for n, each in enumerate((long, many)))

    assert links == 2
    assert len(written) == links
    assert first.tokens == runner.run(StepPlan(5, long)).tokens


@pytest.mark.parametrize(
    ("last", "rows", "wakes"),
    [
        (None, 1, True),  # nobody knows
        (LastRun(8, 120_000), 8, False),
        (LastRun(8, 120_000), 12, False),
        (LastRun(8, 120_000), 14, True),
        (LastRun(8, 230_000), 8, True),
        (LastRun(512, 2_000_000), 8, False),
    ],
)
def test_parked_threads_are_woken_for_what_lasts(last, rows, wakes):
    assert is_worth_waking(last, rows) is wakes


def test_a_script_that_was_brief_wakes_no_worker_the_next_time(model, monkeypatch):
    monkeypatch.setattr(script, "BRIEF_NS", 10**15)  # every run is brief
    woken = []
    run = ThreadPool.run
    monkeypatch.setattr(
        ThreadPool,
        "run",
        lambda pool, calls, counts, *, wakes: (
            woken.append(wakes) or run(pool, calls, counts, wakes=wakes)
        ),
    )
    runner = _runner(model)
    entered, grown = _entries({0: LONG})
    of_warm_up = len(woken)

    runner.run(StepPlan(1, (Slice(0, 0, 9, 8, True),), entered, grown))
    runner.run(StepPlan(2, (Slice(0, 9, 10, 9, True),)))

    assert woken[0] is True
    assert woken[of_warm_up:] == [False] * len(woken[of_warm_up:])
    assert len(woken) > of_warm_up
