from itertools import product

import numpy as np
import pytest
from spaninfer_engine.cache.pool import SpanPool
from spaninfer_engine.cache.prefix import HashSeed, SpanHasher, find_prefix
from spaninfer_engine.cache.rope_state import RopeState

IDS = list(range(16))
CONSTANT = RopeState()


def hashes_of(ids=IDS, *, rotation=CONSTANT, rope_seq_len=16, **seed):
    hasher = SpanHasher(HashSeed(**{"kv_dtype": "bf16", **seed}), 4, rotation, rope_seq_len)
    hasher.extend(np.array(ids))
    return hasher.hashes


def pool_with(hashes, present):
    """Return a pool that holds spans for the labels at these indices."""
    pool = SpanPool(len(hashes))
    pool.take(len(hashes))
    for index in present:
        pool.publish([index], [hashes[index]])
    return pool


def test_equal_sequences_have_equal_hashes_and_a_longer_one_begins_with_them():
    assert hashes_of() == hashes_of()
    assert hashes_of([*IDS, 1, 2, 3, 4])[:4] == hashes_of()


def test_a_different_token_changes_the_hash_of_its_span_and_all_behind_it():
    changed = hashes_of([*IDS[:5], 99, *IDS[6:]])

    assert [old == new for old, new in zip(hashes_of(), changed, strict=True)] == [
        True,
        False,
        False,
        False,
    ]


def test_spans_with_equal_tokens_at_other_positions_have_other_hashes():
    assert len(set(hashes_of([7] * 16))) == 4


@pytest.mark.parametrize(
    "seed",
    [
        {"kv_dtype": "int8"},
        {"tenant": "a"},
        {"adapter": "a"},
        {"adapter": ""},
        {"private": 1},
    ],
    ids=str,
)
def test_everything_else_that_decides_the_content_is_part_of_the_hash(seed):
    assert not set(hashes_of(**seed)) & set(hashes_of())


def test_values_that_look_alike_in_different_places_do_not_collide():
    names = ["", "a", "a', 'b", "None", "a\\"]
    found = {
        hashes_of(tenant=tenant, adapter=adapter)[0]
        for tenant, adapter in product(names, [None, *names])
    }

    assert len(found) == len(names) * (len(names) + 1)


def test_spans_rotated_under_different_frequencies_have_different_hashes():
    rotation = RopeState(lambda length: ((length,),) if length > 10 else ())

    short = hashes_of(rotation=rotation, rope_seq_len=8)  # spans 2 and 3 were decoded beyond 10
    long = hashes_of(rotation=rotation, rope_seq_len=16)

    assert short[:2] == hashes_of(rotation=rotation, rope_seq_len=6)[:2]
    assert short[:2] != long[:2]
    assert short[3] != long[3]


def test_a_hit_ends_at_the_first_span_that_is_missing():
    hashes = hashes_of()
    pool = pool_with(hashes, [0, 1, 3])

    hit = find_prefix(hashes, [pool], [None], 4)

    assert (hit.num_spans, hit.tables) == (2, ((0, (0, 1)),))


def test_a_hit_must_hold_in_every_group_and_windows_need_only_what_they_see():
    hashes = hashes_of()
    whole = pool_with(hashes, [0, 1, 2])
    window = pool_with(hashes, [1, 2, 3])  # position 12 sees 7 to 12: spans 1 and 2

    hit = find_prefix(hashes, [whole, window], [None, 6], 4)

    assert (hit.num_spans, hit.tables) == (3, ((0, (0, 1, 2)), (1, (1, 2))))


def test_a_gap_that_the_window_still_sees_shortens_the_hit():
    hashes = hashes_of()
    window = pool_with(hashes, [0, 2, 3])

    assert find_prefix(hashes, [window], [10], 4).num_spans == 1  # position 16 sees 7 to 16
    assert find_prefix(hashes, [window], [5], 4).num_spans == 4  # position 16 sees 12 to 16


@pytest.mark.parametrize("windows", list(product([None, 1, 3, 4, 5, 9], repeat=2)))
def test_the_longest_hit_is_found_whatever_is_there(windows):
    hashes = hashes_of()
    for bits in product([False, True], repeat=8):
        present = [
            {i for i in range(4) if bits[i]},
            {i for i in range(4) if bits[4 + i]},
        ]
        pools = [pool_with(hashes, spans) for spans in present]

        hit = find_prefix(hashes, pools, windows, 4)

        assert hit.num_spans == max(
            n
            for n in range(5)
            if all(
                position // 4 in spans
                for spans, window in zip(present, windows, strict=True)
                for position in range(0 if window is None else max(0, 4 * n - window + 1), 4 * n)
            )
        )
