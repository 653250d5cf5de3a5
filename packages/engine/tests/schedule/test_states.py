from driving import Bench, request
from spaninfer_engine.schedule.kv_cache_manager import Availability

STATES = dict(num_spans=(20, 3), windows=(None, 2), states=frozenset({1}))


def test_a_snapshot_that_the_next_step_begins_with_is_not_given_back():
    """A step of 30 tokens was made smaller: it ends where the snapshot is, and the state is there.

    Given back, another sequence may take and write it in the step that reads it.
    """
    bench = Bench(**STATES, step_tokens=32, snapshot_tokens=1000)
    (seq,) = bench.add(request(1, range(30)))
    kv_cache, pool = bench.scheduler.kv_cache, bench.scheduler.kv_cache.pools[1]
    assert kv_cache.start(seq, spare=0) is Availability.NOW
    assert kv_cache.grow(seq, 0, 30) is Availability.NOW

    seq.num_scheduled = 28
    kv_cache.publish(seq, 28)
    assert (pool.num_in_use, pool.num_cached) == (2, 0)

    seq.num_scheduled = 30
    kv_cache.publish(seq, 28)
    assert (pool.num_in_use, pool.num_cached) == (1, 1)


def test_a_decode_needs_no_other_state_however_many_run():
    bench = Bench(**{**STATES, "num_spans": (40, 4)}, context=60)
    for number in (100, 200):
        bench.add(request(number, [number, 1, 2, 3, 4, 5]))

    bench.run()

    assert bench.scheduler.counts.preemptions == 0
    assert bench.scheduler.kv_cache.pools[1].num_cached == 2
