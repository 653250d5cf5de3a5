"""The picture of the KV cache, while requests fill it."""

from __future__ import annotations

import numpy as np
from driving import Bench, request
from spaninfer_engine.cache.pool import SpanPool, SpanState
from spaninfer_engine.core.cache_map import GroupMap, cache_map_of
from spaninfer_engine.request.request import SamplingParams


def test_every_span_has_the_state_that_its_use_gives_it() -> None:
    pool = SpanPool(6)
    shared, own, cached, pending = pool.take(4) or ()
    pool.share([shared])
    pool.publish([cached], [b"prefix"])
    pool.give_back([cached])
    pool.mark_planned(1)
    pool.give_back([pending])

    expected = np.full(6, SpanState.FREE)
    expected[[shared, own, cached]] = SpanState.SHARED, SpanState.IN_USE, SpanState.CACHED
    assert pool.states().tolist() == expected.tolist()


def test_sequences_own_the_spans_of_their_tables_and_share_prefixes() -> None:
    bench = Bench(span_len=4, num_spans=(24,), step_tokens=64)
    prompt = list(range(16))
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    bench.add(request(1000, prompt, sampling=sampling))
    bench.step()
    bench.step()
    bench.add(request(2000, [*prompt, 7], sampling=sampling))
    bench.step()

    picture = cache_map_of(bench.scheduler)

    first, second = picture.running
    assert (first.number, first.prompt_len, first.cached_len) == (1000, 16, 0)
    assert (second.number, second.prompt_len, second.cached_len) == (2000, 17, 16)
    assert first.output_len >= 1
    (group,) = picture.groups
    tables = [seq.tables[0].spans for seq in bench.scheduler.running]
    assert len(set(tables[0]) & set(tables[1])) == 4, "they share the prompt of the first"
    for span in range(24):
        users = [index for index, table in enumerate(tables) if span in table]
        state = (SpanState.FREE, SpanState.IN_USE, SpanState.SHARED)[len(users)]
        assert group.states[span] == state
        assert group.owners[span] == max(users, default=-1)
    bench.run()
    ended = cache_map_of(bench.scheduler)
    assert ended.running == ()
    assert (ended.groups[0].owners == -1).all()
    assert set(ended.groups[0].states.tolist()) == {SpanState.FREE, SpanState.CACHED}


def test_neighbourhoods_are_drawn_as_their_busiest_span() -> None:
    states, owners = np.zeros(10, np.uint8), np.full(10, -1, np.int32)
    states[[1, 4, 9]] = SpanState.CACHED, SpanState.SHARED, SpanState.IN_USE
    owners[[4, 9]] = 3, 0
    group = GroupMap(states, owners)

    free = (SpanState.FREE, None)
    assert group.cells(4) == [
        (SpanState.CACHED, None),
        (SpanState.SHARED, 3),
        free,
        (SpanState.IN_USE, 0),
    ]
    assert group.cells(10)[:2] == [free, (SpanState.CACHED, None)]
    assert len(group.cells(100)) == 10
