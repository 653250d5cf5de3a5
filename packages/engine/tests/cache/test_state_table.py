from spaninfer_engine.cache.pool import SpanPool
from spaninfer_engine.cache.state_table import StateTable


def table_in(pool, *, prefill_end=30, snapshot_tokens=1000):
    table = StateTable(pool, 4, snapshot_tokens)
    table.begin(prefill_end)
    return table


def test_a_sequence_has_one_span_however_long_it_becomes():
    pool = SpanPool(3)
    table = table_in(pool, prefill_end=3)

    for stop in range(1, 40):
        assert table.grow(stop)

    assert table.spans == [0]
    assert table.take_update() == (0, (0,) * 10)
    assert pool.num_in_use == 1
    assert table.num_missing(4000) == 0


def test_a_prompt_leaves_a_snapshot_in_front_of_its_last_token():
    """Of 29 tokens the last one, at position 28, is always computed: 28 are 7 spans."""
    table = table_in(SpanPool(3), prefill_end=29)

    table.grow(29)

    assert table.take_update() == (0, (0,) * 6 + (1, 0))


def test_a_prompt_leaves_snapshots_every_so_many_tokens():
    table = table_in(SpanPool(9), prefill_end=30, snapshot_tokens=8)

    table.grow(30)

    assert table.take_update() == (0, (0, 1, 0, 2, 0, 3, 4, 0))
    assert table.take_snapshots(4) == [(1, 1), (3, 2)]
    assert table.spans == [3, 4, 0]


def test_where_a_step_ends_at_a_snapshot_the_state_stays_there_and_goes_on_elsewhere():
    table = table_in(SpanPool(3), prefill_end=29)
    table.grow(28)
    assert table.take_update() == (0, (0,) * 7)

    table.grow(29)

    assert table.take_update() == (7, (1,))
    assert table.take_snapshots(7) == [(6, 0)]


def test_no_snapshot_is_taken_where_the_pool_has_no_span():
    table = table_in(SpanPool(1), prefill_end=29)

    assert table.grow(29)

    assert table.take_update() == (0, (0,) * 8)
    assert table.take_snapshots(8) == []


def test_a_shared_snapshot_is_read_and_not_written():
    pool = SpanPool(4)
    owner = table_in(pool, prefill_end=9)
    owner.grow(9)
    ((index, span),) = owner.take_snapshots(2)
    pool.publish([span], [b"prefix"])
    pool.give_back([span])
    table = StateTable(pool, 4, 1000)

    table.adopt(index, [span])
    table.begin(12)
    table.grow(12)

    assert table.take_update() == (1, (span, 2))
    table.release()
    owner.release()
    pool.check()
    assert pool.num_available == pool.num_spans
    assert pool.find(b"prefix") == span


def test_one_that_is_loaded_gets_a_span_of_its_own():
    pool = SpanPool(4)
    table = StateTable(pool, 4, 1000)

    table.adopt(2, [None])
    table.begin(20)
    table.grow(13)

    assert table.take_update() == (2, (0, 1))


def test_a_released_table_begins_anew():
    pool = SpanPool(4)
    table = table_in(pool)
    table.grow(30)
    table.take_update()

    table.release()

    assert pool.num_available == 4
    assert table.num_missing(1) == 1
    table.begin(2)
    table.grow(2)
    assert table.take_update() is not None
