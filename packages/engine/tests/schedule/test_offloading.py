"""KV cache offloading: what the pool has evicted is loaded from host memory, and nothing else."""

from __future__ import annotations

from checking import alone
from driving import Bench, request
from spaninfer_engine.request import Placement, SamplingParams

ONE = SamplingParams(max_tokens=1)
FIRST, OTHER = list(range(13)), list(range(20, 33))


def answered(
    bench: Bench, number: int, prompt: list[int], placement: Placement | None = None
) -> int:
    """Run one request to its end, check its answer, and return how many tokens were cached."""
    bench.add(request(number, prompt, sampling=ONE, placement=placement))
    bench.run()
    assert bench.tokens[number] == alone(prompt, seed=0, limit=len(prompt) + 1)
    return bench.ended[number].usage.cached_len


def test_a_prefix_that_the_pool_evicted_is_loaded_from_host_memory() -> None:
    bench = Bench(num_spans=(4,), num_slots=(8,))
    answered(bench, 1, FIRST)
    answered(bench, 2, OTHER)  # takes every span

    cached = answered(bench, 3, FIRST)

    offload = bench.scheduler.kv_cache.offload
    assert offload is not None
    assert cached == 12
    assert (offload.counts.stored, offload.counts.loaded) == (6, 3)


def test_spans_that_the_pool_still_holds_are_shared_and_the_others_loaded() -> None:
    bench = Bench(num_spans=(5,), num_slots=(8,))
    answered(bench, 1, FIRST)
    answered(bench, 2, list(range(20, 30)))  # takes the spans of the end of the first prompt

    cached = answered(bench, 3, FIRST)

    offload = bench.scheduler.kv_cache.offload
    assert offload is not None
    assert cached == 12
    assert 0 < offload.counts.loaded < 3


def test_a_span_is_stored_once_and_not_again_after_it_was_loaded() -> None:
    bench = Bench(num_spans=(4,), num_slots=(8,))

    for number in range(1, 7):
        answered(bench, number, FIRST if number % 2 else OTHER)

    offload = bench.scheduler.kv_cache.offload
    assert offload is not None
    assert offload.counts.stored == 6


def test_a_tenant_loads_nothing_of_another() -> None:
    bench = Bench(num_spans=(4,), num_slots=(9,))
    answered(bench, 1, FIRST, Placement(tenant="one"))
    answered(bench, 2, OTHER)

    assert answered(bench, 3, FIRST, Placement(tenant="other")) == 0
    assert answered(bench, 4, FIRST, Placement(tenant="one")) == 12


def test_host_memory_keeps_longest_what_the_pool_was_asked_for_last() -> None:
    bench = Bench(num_spans=(12,), num_slots=(6,))
    answered(bench, 1, FIRST)
    answered(bench, 2, OTHER)
    answered(bench, 3, FIRST)  # found in the pool: host memory hears of it
    answered(bench, 4, list(range(34, 47)))

    assert [held(bench, prompt) for prompt in (FIRST, OTHER)] == [3, 0]


def held(bench: Bench, prompt: list[int]) -> int:
    """Return how many spans of a prompt host memory holds."""
    manager = bench.scheduler.kv_cache
    (seq,) = manager.sequences_of(request(99, prompt), len(prompt) + 1)
    seq.hasher.extend(seq.ids(0, len(prompt)))
    assert manager.offload is not None
    return sum(manager.offload.slots[0].find(each) is not None for each in seq.hasher.hashes)


def test_host_memory_keeps_the_start_of_a_prefix_longer_than_its_end() -> None:
    bench = Bench(num_spans=(4,), num_slots=(4,), step_tokens=4)
    answered(bench, 1, FIRST)
    answered(bench, 2, OTHER[:9])  # two of its spans are stored, in one slot that is free

    assert answered(bench, 3, FIRST) == 8


def test_a_window_group_loads_the_spans_that_its_window_sees() -> None:
    bench = Bench(num_spans=(4, 4), windows=(None, 5), num_slots=(8, 8), step_tokens=8, context=14)
    answered(bench, 1, FIRST)
    answered(bench, 2, OTHER)

    cached = answered(bench, 3, FIRST)

    offload = bench.scheduler.kv_cache.offload
    assert offload is not None
    assert cached == 12
    assert 3 < offload.counts.loaded < 6
