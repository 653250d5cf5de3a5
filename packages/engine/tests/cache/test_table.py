from spaninfer_engine.cache.pool import SpanPool
from spaninfer_engine.cache.table import SpanTable, first_visible


def test_a_table_takes_as_many_spans_as_its_positions_need():
    table = SpanTable(SpanPool(8), span_len=4, window=None)

    assert table.grow(9)

    assert table.spans == [0, 1, 2]
    assert (table.num_missing(12), table.num_missing(13)) == (0, 1)


def test_a_table_that_cannot_grow_stays_as_it_is():
    table = SpanTable(SpanPool(2), span_len=4, window=None)
    table.grow(4)

    assert not table.grow(16)

    assert table.spans == [0]


def test_a_table_update_is_sent_once_and_holds_only_what_is_new():
    table = SpanTable(SpanPool(8), span_len=4, window=None)
    table.grow(8)

    assert table.take_update() == (0, (0, 1))
    assert table.take_update() is None
    table.grow(12)

    assert table.take_update() == (2, (2,))


def test_spans_behind_the_window_go_back_and_indices_stay_true():
    pool = SpanPool(8)
    table = SpanTable(pool, span_len=4, window=6)
    table.grow(16)

    table.slide(14)  # sees positions 9 to 14: spans 2 and 3

    assert (table.first, table.spans, table.stop) == (2, [2, 3], 4)
    assert pool.num_available == 6
    table.grow(20)
    assert table.take_update() == (2, (2, 3, 0))


def test_an_adopted_prefix_is_shared_and_announced_from_its_first_span():
    pool = SpanPool(8)
    owner = SpanTable(pool, span_len=4, window=6)
    owner.grow(16)
    table = SpanTable(pool, span_len=4, window=6)

    table.adopt(2, owner.spans[2:])
    owner.release()

    assert table.take_update() == (2, (2, 3))
    assert pool.num_in_use == 2


def test_a_released_table_begins_anew():
    pool = SpanPool(4)
    table = SpanTable(pool, span_len=4, window=None)
    table.grow(8)
    table.take_update()

    table.release()
    table.grow(4)

    assert table.take_update() == (0, (table.spans[0],))
    assert pool.num_in_use == 1


def test_the_first_visible_span_holds_the_oldest_key_in_the_window():
    # Position p sees the keys j with p - window < j <= p.
    for start in range(40):
        for window in range(1, 12):
            oldest = max(0, start - window + 1)
            assert first_visible(start, 4, window) == oldest // 4
    assert first_visible(39, 4, None) == 0


def test_what_the_pool_holds_of_a_prefix_is_shared_before_spans_are_taken_for_the_rest():
    pool = SpanPool(2)
    spans = pool.take(2)
    pool.publish(spans, [b"a", b"b"])
    pool.give_back(spans)  # the first of them would be taken first
    table = SpanTable(pool, span_len=4, window=None)

    table.adopt(3, [spans[0], None])

    assert (table.first, table.stop, table.spans) == (3, 5, spans)
    assert (pool.find(b"a"), pool.find(b"b")) == (spans[0], None)
