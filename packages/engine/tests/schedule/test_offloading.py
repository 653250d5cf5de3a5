"""KV cache offloading: spans evicted from the pool are loaded from host memory, nothing else is."""

from __future__ import annotations

from pathlib import Path

from checking import alone
from driving import Bench, request
from setting_clock import SetClock
from spaninfer_engine.cache.ttl import TimeToLive
from spaninfer_engine.request.request import Placement, SamplingParams

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


def test_a_prefix_is_read_from_disk_by_an_engine_that_never_computed_it(tmp_path: Path) -> None:
    disk = {"disk": tmp_path / "spans", "codes": {}}
    first = Bench(num_slots=(8,), **disk)
    answered(first, 1, FIRST)
    first.close()
    second = Bench(num_slots=(8,), **disk)

    cached = answered(second, 2, FIRST)
    second.close()

    offload = second.scheduler.kv_cache.offload
    assert offload is not None
    assert offload.disk is not None
    assert cached == 12
    assert (offload.counts.disk_hit_tokens, offload.counts.host_hit_tokens) == (12, 0)
    assert (offload.disk.counts.read, offload.disk.counts.written) == (3, 0)


def test_of_a_prefix_on_disk_as_much_is_read_as_there_are_slots(tmp_path: Path) -> None:
    disk = {"disk": tmp_path / "spans", "codes": {}}
    first = Bench(num_slots=(8,), **disk)
    answered(first, 1, FIRST)
    first.close()

    second = Bench(num_slots=(2,), **disk)

    assert answered(second, 2, FIRST) == 8
    second.close()


def test_a_span_that_cannot_be_read_is_computed(tmp_path: Path) -> None:
    disk = {"disk": tmp_path / "spans", "codes": {}}
    first = Bench(num_slots=(8,), **disk)
    answered(first, 1, FIRST)
    first.close()
    second = Bench(num_slots=(8,), **disk)
    for file in (tmp_path / "spans").iterdir():
        file.write_bytes(file.read_bytes()[:-1] + b"?")

    assert answered(second, 2, FIRST) == 0
    second.close()

    offload = second.scheduler.kv_cache.offload
    assert offload is not None
    assert offload.disk is not None
    assert offload.disk.counts.failed == 3


def test_others_are_computed_while_a_sequence_waits_for_its_spans(tmp_path: Path) -> None:
    disk = {"disk": tmp_path / "spans", "codes": {}}
    first = Bench(num_slots=(8,), **disk)
    answered(first, 1, FIRST)
    first.close()
    bench = Bench(num_slots=(8,), **disk)
    bench.add(request(2, FIRST, sampling=ONE))
    bench.add(request(3, OTHER, sampling=ONE))

    plan = bench.scheduler.plan(0.0)

    assert plan is not None
    assert [part.seq_id for part in plan.slices] == [3]
    bench.runner.submit(plan)
    bench.scheduler.apply(bench.runner.run_next(), 0.0)
    bench.run()
    assert bench.ended[2].usage.cached_len == 12
    bench.close()


def test_a_sequence_may_end_while_its_spans_are_read(tmp_path: Path) -> None:
    disk = {"disk": tmp_path / "spans", "codes": {}}
    first = Bench(num_slots=(8,), **disk)
    answered(first, 1, FIRST)
    first.close()
    bench = Bench(num_slots=(3,), **disk)
    bench.add(request(2, FIRST, sampling=ONE))
    assert bench.scheduler.plan(0.0) is None

    bench.scheduler.stop((2,), 0.0)
    bench.run()

    assert answered(bench, 3, FIRST) == 12
    bench.close()
    bench.scheduler.kv_cache.take_transfers()
    assert bench.scheduler.kv_cache.offload is not None
    assert bench.scheduler.kv_cache.offload.slots[0].num_available == 3


def test_two_sequences_wait_for_the_same_spans_in_as_many_slots(tmp_path: Path) -> None:
    disk = {"disk": tmp_path / "spans", "codes": {}}
    first = Bench(num_slots=(8,), **disk)
    answered(first, 1, FIRST)
    first.close()
    bench = Bench(num_slots=(3,), **disk)
    for number in (2, 3):
        bench.add(request(number, FIRST, sampling=ONE))

    assert bench.scheduler.plan(0.0) is None
    bench.run()
    bench.close()

    assert [bench.ended[number].usage.cached_len for number in (2, 3)] == [12, 12]


def test_a_prefix_is_not_loaded_from_host_memory_after_its_time_to_live() -> None:
    clock = SetClock()
    bench = Bench(num_spans=(4,), num_slots=(8,), ttl=TimeToLive(10, clock))
    answered(bench, 1, FIRST)
    clock.pass_s(5)
    answered(bench, 2, OTHER)  # takes every span
    clock.pass_s(5)

    assert answered(bench, 3, FIRST) == 0

    offload = bench.scheduler.kv_cache.offload
    assert offload is not None
    assert (offload.counts.expired, offload.counts.loaded) == (3, 0)
    assert offload.counts.stored == 9  # it was stored again


def test_a_prefix_that_is_found_in_the_pool_stays_in_host_memory() -> None:
    clock = SetClock()
    bench = Bench(num_spans=(12,), num_slots=(8,), ttl=TimeToLive(10, clock))
    answered(bench, 1, FIRST)
    answered(bench, 2, OTHER)
    clock.pass_s(6)
    answered(bench, 3, FIRST)
    clock.pass_s(6)

    answered(bench, 4, list(range(34, 38)))

    assert [held(bench, prompt) for prompt in (FIRST, OTHER)] == [3, 0]


def test_a_prefix_that_is_found_in_the_pool_stays_on_disk(tmp_path: Path) -> None:
    clock = SetClock()
    disk = {"disk": tmp_path / "spans", "codes": {}, "ttl": TimeToLive(10, clock)}
    first = Bench(num_slots=(16,), **disk)
    answered(first, 1, FIRST)
    answered(first, 2, OTHER)
    first.close()
    second = Bench(num_slots=(8,), **disk)
    answered(second, 3, FIRST)  # read
    clock.pass_s(6)
    answered(second, 4, FIRST)
    clock.pass_s(6)

    second.scheduler.kv_cache.expire()
    second.close()

    offload = second.scheduler.kv_cache.offload
    assert offload is not None
    assert offload.disk is not None
    assert offload.disk.counts.expired == 3  # those of the other prompt
    assert len(list((tmp_path / "spans").iterdir())) == 3


def test_a_prefix_is_not_read_from_disk_after_its_time_to_live(tmp_path: Path) -> None:
    clock = SetClock()
    disk = {"disk": tmp_path / "spans", "codes": {}, "ttl": TimeToLive(10, clock)}
    first = Bench(num_slots=(8,), **disk)
    answered(first, 1, FIRST)
    first.close()
    clock.pass_s(8)
    second = Bench(num_slots=(8,), **disk)
    clock.pass_s(8)

    assert answered(second, 2, FIRST) == 0
    second.close()
    assert Bench(num_slots=(8,), **disk).scheduler.kv_cache.time_left_s > 0
