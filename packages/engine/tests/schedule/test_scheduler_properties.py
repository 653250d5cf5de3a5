"""Properties of the scheduler: with any arrivals and any pool, a request gets the tokens it gets
alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from checking import alone
from driving import Bench, request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spaninfer_engine.cache.rope_state import RopeState, State
from spaninfer_engine.request.request import FinishReason, Placement, SamplingParams

END = 7


@dataclass(frozen=True)
class Arrival:
    step: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    placement: Placement
    stops_after: int | None  # steps until the caller gives up


prompts = st.one_of(
    st.lists(st.integers(0, 49), min_size=1, max_size=30),
    # few different beginnings, so that prefixes are shared
    st.tuples(st.integers(0, 1), st.integers(1, 28)).map(lambda p: [p[0], *range(p[1])]),
)


@st.composite
def arrivals(draw: st.DrawFn) -> Arrival:
    max_tokens = draw(st.one_of(st.none(), st.integers(1, 25)))
    return Arrival(
        draw(st.integers(0, 30)),
        tuple(draw(prompts)),
        SamplingParams(
            max_tokens=max_tokens,
            min_tokens=draw(st.integers(0, max_tokens or 10)),
            n=draw(st.sampled_from([1, 1, 1, 2, 3])),
            prompt_logprobs=draw(st.sampled_from([None, None, 0])),
        ),
        Placement(
            priority=draw(st.integers(0, 2)),
            tenant=draw(st.sampled_from(["", "", "other"])),
            client=draw(st.sampled_from(["", "", "other"])),
            deadline_s=draw(st.sampled_from([None, None, None, 12.0])),
        ),
        draw(st.one_of(st.none(), st.none(), st.integers(0, 12))),
    )


def dynamic(length: int) -> State:
    """Keys change with every token beyond 20, as with dynamic NTK."""
    return ((length,),) if length > 20 else ()


def longrope(length: int) -> State:
    """Keys change once, beyond 20, and all of them are computed again."""
    return ((1,),) if length > 20 else ()


STATES = dict(windows=(None, 2), states=frozenset({1}))
SHAPES = {
    "plenty": dict(num_spans=(200,)),
    "tiny": dict(num_spans=(9,), step_tokens=10, max_running=6),
    "one place": dict(num_spans=(12,), max_running=1, step_tokens=5),
    "turns of long answers": dict(num_spans=(14,), short_tokens=3, step_tokens=6),
    "few tokens a step": dict(num_spans=(14,), step_tokens=2, max_running=4),
    "window": dict(num_spans=(12, 4), windows=(None, 6), step_tokens=8),
    "only windows": dict(num_spans=(5,), windows=(9,), step_tokens=8, context=60),
    "two windows": dict(num_spans=(4, 5, 10), windows=(5, 9, None), step_tokens=8, context=40),
    "window beyond the context": dict(num_spans=(9, 5), windows=(None, 99), context=20),
    "host slots": dict(num_spans=(9,), num_slots=(30,), step_tokens=10, max_running=6),
    "few host slots": dict(num_spans=(12,), num_slots=(3,), max_running=3, step_tokens=5),
    "host slots and windows": dict(
        num_spans=(10, 5), windows=(None, 6), num_slots=(20, 20), step_tokens=8, context=40
    ),
    "host slots and unequal windows": dict(
        num_spans=(4, 5, 10), windows=(5, 9, None), num_slots=(3, 9, 6), step_tokens=8, context=40
    ),
    "host slots and longrope": dict(
        num_spans=(12,), num_slots=(16,), rotation=RopeState(longrope, recompute_beyond=20)
    ),
    "not shared": dict(num_spans=(14,), share=False),
    "dynamic": dict(num_spans=(12,), rotation=RopeState(dynamic)),
    "longrope": dict(num_spans=(12,), rotation=RopeState(longrope, recompute_beyond=20)),
    "states": dict(num_spans=(14, 8), **STATES, step_tokens=8),
    "few states": dict(num_spans=(30, 2), **STATES, step_tokens=10),
    "states alone": dict(num_spans=(5,), windows=(2,), states=frozenset({0}), context=40),
    "states and windows": dict(
        num_spans=(6, 12, 5), windows=(2, None, 6), states=frozenset({0}), context=40, step_tokens=7
    ),
    "many snapshots": dict(num_spans=(16, 9), **STATES, snapshot_tokens=4, step_tokens=13),
    "states of few places": dict(num_spans=(9, 6), **STATES, max_running=2, step_tokens=3),
    "states not shared": dict(num_spans=(14, 6), **STATES, share=False),
    "states and longrope": dict(
        num_spans=(13, 6), **STATES, rotation=RopeState(longrope, recompute_beyond=20)
    ),
    "host slots and states": dict(
        num_spans=(10, 3), **STATES, num_slots=(20, 4), step_tokens=8, context=40
    ),
    "longrope window": dict(
        num_spans=(13, 8), windows=(None, 9), rotation=RopeState(longrope, recompute_beyond=20)
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_request_gets_the_tokens_it_gets_alone(shape: str, data: st.DataObject) -> None:
    check_traffic(Bench(**SHAPES[shape], depth=data.draw(st.integers(1, 3))), data)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if "num_slots" in SHAPES[shape]])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_so_it_does_with_spans_on_disk_of_two_engines_in_turn(
    shape: str, data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        disk_bytes = data.draw(st.sampled_from([500, 1 << 30]))  # 7 spans, or all
        disk = dict(disk=Path(folder) / "spans", disk_bytes=disk_bytes, codes={})
        for _ in range(2):
            bench = Bench(**SHAPES[shape], **disk, depth=data.draw(st.integers(1, 3)))
            check_traffic(bench, data)
            bench.close()


def check_traffic(bench: Bench, data: st.DataObject) -> None:
    """Assert that each of some requests gets the tokens it gets alone, and that nothing is lost."""
    coming = data.draw(st.lists(arrivals(), min_size=1, max_size=9))
    numbered = [(100 * (i + 1), arrival) for i, arrival in enumerate(coming)]
    numbered = [
        (number, arrival)
        for number, arrival in numbered
        if len(arrival.prompt) < bench.limits.context
    ]

    seqs = {}
    for step in range(max((arrival.step for _, arrival in numbered), default=0) + 14):
        for number, arrival in numbered:
            if arrival.step == step:
                seqs[number] = bench.add(
                    request(
                        number,
                        arrival.prompt,
                        sampling=arrival.sampling,
                        placement=arrival.placement,
                        seed=number,
                        end_ids=(END,),
                        arrived_s=bench.now,
                    )
                )
            if arrival.stops_after is not None and arrival.step + arrival.stops_after == step:
                ids = range(number, number + arrival.sampling.n)
                bench.scheduler.stop(ids, bench.now)
        bench.step()
    bench.run()

    for number, arrival in numbered:
        for seq in seqs[number]:
            end = bench.ended[seq.seq_id]
            expected = alone(
                arrival.prompt,
                seed=seq.seed,
                limit=seq.prompt_len + seq.max_output,
                end_ids=(END,),
                sampling=arrival.sampling,
            )
            got = bench.tokens[seq.seq_id]
            assert end.usage.output_len == len(got)
            if end.reason in (FinishReason.STOPPED, FinishReason.DEADLINE):
                assert got == expected[: len(got)]
                continue
            assert got == expected
            assert end.reason is (FinishReason.STOP if got[-1] == END else FinishReason.LENGTH)
            if arrival.sampling.prompt_logprobs is not None and seq.index == 0:
                assert [(item.token_id, -item.logprob) for item in seq.prompt_logprobs()] == [
                    (token, position) for position, token in enumerate(arrival.prompt[1:])
                ]
    for pool in bench.scheduler.kv_cache.pools:
        assert pool.num_available == pool.num_spans
