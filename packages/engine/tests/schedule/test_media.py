from collections import Counter
from itertools import pairwise

import pytest
from albums import album, encoded
from checking import alone
from driving import Bench, request
from hypothesis import given
from hypothesis import strategies as st
from spaninfer_engine.cache.encodings import EncoderCache
from spaninfer_engine.request.request import FinishReason, Placement, SamplingParams
from spaninfer_engine.schedule.policy import ENCODE_EVERY


def upto(max_tokens, **options):
    return SamplingParams(max_tokens=max_tokens, **options)


def asked(number, *parts, max_tokens=4, **options):
    ids, media = album(*parts)
    return request(number, ids, media=media, sampling=upto(max_tokens), **options)


def expected(asking):
    return alone(
        asking.prompt_ids.tolist(),
        seed=asking.seed,
        limit=len(asking.prompt_ids) + asking.sampling.max_tokens,
        sampling=asking.sampling,
        media=asking.media,
    )


def all_encoded(bench):
    return [name for names in encoded(bench.runner.steps) for name in names]


def test_a_picture_is_encoded_before_the_first_slice_that_reads_it():
    bench = Bench(num_spans=(50,), max_encoded=100, step_tokens=8)
    asking = asked(1, *range(6), ("cat", 12), 1, 2)
    bench.add(asking)
    bench.run()

    assert encoded(bench.runner.steps)[0] == ["cat"]
    slices = [part[1:3] for plan in bench.runner.steps for part in plan.slices]
    assert slices[:3] == [(0, 8), (8, 16), (16, 20)]  # chunks cut through it
    assert bench.tokens[1] == expected(asking)


def test_one_picture_in_many_turns_and_requests_is_encoded_once():
    bench = Bench(num_spans=(200,), max_encoded=100, context=200)
    said = []
    for turn in range(10):
        said += [3, 4] if turn else []
        bench.add(asked(10 * turn + 1, 1, ("cat", 12), *said, turn, seed=turn))
        bench.add(asked(10 * turn + 2, 2, ("cat", 12), turn, seed=turn))
        bench.run()

    assert all_encoded(bench) == ["cat"]
    assert bench.scheduler.counts.encoded_media == 1


def test_different_pictures_share_no_prefix_and_equal_ones_do():
    bench = Bench(num_spans=(50,), max_encoded=100)
    bench.add(asked(1, *range(4), ("cat", 8), *range(8)))
    bench.run()
    bench.add(asked(2, *range(4), ("dog", 8), *range(8)))
    bench.add(asked(3, *range(4), ("cat", 8), *range(8)))
    bench.run()

    cached = {number: ended.usage.cached_len for number, ended in bench.ended.items()}
    assert cached == {1: 0, 2: 4, 3: 16}


def test_a_picture_that_begins_elsewhere_in_a_span_shares_no_prefix():
    bench = Bench(num_spans=(50,), max_encoded=100)
    bench.add(asked(1, 49, ("cat", 7), *range(8)))  # a written pad in front: the ids are equal
    bench.run()
    bench.add(asked(2, ("cat", 7), 49, *range(8)))
    bench.run()

    assert bench.ended[2].usage.cached_len == 0


def show_six_pictures_beside_a_decode(bench):
    bench.add(request(1, [1, 2], sampling=upto(60)))
    bench.step()
    for number in range(2, 8):
        bench.add(asked(number, number, (f"picture {number}", 12), 3, max_tokens=2))
    bench.run()


def test_beside_decodes_towers_see_media_in_one_step_of_two_and_little_at_a_time():
    bench = Bench(num_spans=(200,), max_encoded=200, step_tokens=16, context=100)
    show_six_pictures_beside_a_decode(bench)

    counts = [len(names) for names in encoded(bench.runner.steps)]
    assert sum(counts) == 6
    assert max(counts) == 1  # two have more tokens than a step
    gaps = [at for at, count in enumerate(counts) if count]
    assert all(after - before >= ENCODE_EVERY for before, after in pairwise(gaps))
    decoding = [any(part[0] == 1 for part in plan.slices) for plan in bench.runner.steps]
    assert all(decoding[: decoding.index(False) if False in decoding else None])
    assert decoding.count(True) == 60  # it takes part in every step until it ends


def test_where_many_media_wait_towers_see_some_in_every_step():
    bench = Bench(num_spans=(200,), max_encoded=200, step_tokens=16, pause_tokens=32, context=100)
    show_six_pictures_beside_a_decode(bench)

    counts = [len(names) for names in encoded(bench.runner.steps)]
    first = counts.index(1)
    # Six pictures of 12 tokens wait: until fewer than 32 tokens are left, none lets a step pass.
    assert counts[first : first + 4] == [1, 1, 1, 1]
    assert sum(counts) == 6
    assert max(counts) == 1
    decoding = [any(part[0] == 1 for part in plan.slices) for plan in bench.runner.steps]
    assert decoding.count(True) == 60
    assert all(decoding[first : first + 12])


def test_without_decodes_towers_see_as_many_as_a_step_has_tokens():
    bench = Bench(num_spans=(200,), max_encoded=200, step_tokens=64, context=200)
    for number in range(1, 5):
        bench.add(asked(number, number, (f"picture {number}", 20), 3))
    bench.run()

    assert next(len(names) for names in encoded(bench.runner.steps)) == 3  # of 20 tokens, in 64


def test_memory_of_encodings_is_kept_to_and_the_least_recently_needed_goes_first():
    bench = Bench(num_spans=(100,), max_encoded=24, share=False)
    for number, name in enumerate(["cat", "dog", "cat", "elk", "cat", "dog"], start=1):
        bench.add(asked(number, 1, (name, 12), 2))
        bench.run()

    assert all_encoded(bench) == ["cat", "dog", "elk", "dog"]


def test_a_preempted_request_gets_its_pictures_again():
    bench = Bench(num_spans=(9,), max_encoded=12, step_tokens=12, context=36)
    first = asked(1, 1, ("cat", 10), 2, max_tokens=18)
    second = asked(2, 3, ("dog", 10), 4, max_tokens=18)
    bench.add(first)
    bench.add(second)
    bench.run()

    assert bench.scheduler.counts.preemptions > 0
    assert bench.tokens == {1: expected(first), 2: expected(second)}
    assert Counter(all_encoded(bench))["dog"] >= 1


def test_a_picture_that_cannot_be_encoded_ends_the_requests_that_show_it_alone():
    bench = Bench(num_spans=(100,), max_encoded=100, unreadable=frozenset({b"torn"}))
    good = asked(1, 1, ("cat", 8), 2)
    bench.add(good)
    bench.add(asked(2, 3, ("torn", 8), 4))
    bench.add(asked(3, 3, ("cat", 8), 5, ("torn", 8), 4))
    bench.run()

    assert bench.tokens[1] == expected(good)
    for number in (2, 3):
        assert bench.ended[number].reason is FinishReason.ERROR
        assert str(bench.ended[number].error) == "the tower failed"
    assert b"torn" not in bench.scheduler.media.cache


def test_choices_of_a_request_read_one_encoding():
    bench = Bench(num_spans=(100,), max_encoded=100)
    ids, media = album(1, ("cat", 9), 2)
    bench.add(request(1, ids, media=media, sampling=upto(5, n=3)))
    bench.run()

    assert all_encoded(bench) == ["cat"]
    assert len(bench.ended) == 3


@pytest.mark.parametrize("depth", [1, 2])
@given(data=st.data())
def test_whatever_comes_every_request_gets_the_tokens_it_gets_alone(depth, data):
    bench = Bench(
        num_spans=(data.draw(st.integers(18, 40)),),
        max_encoded=data.draw(st.integers(14, 40)),
        step_tokens=data.draw(st.sampled_from([4, 16, 64])),
        context=72,
        depth=depth,
    )
    names = st.sampled_from(["cat", "dog", "elk"])
    picture = names.map(lambda name: (name, {"cat": 5, "dog": 9, "elk": 14}[name]))
    parts = st.lists(st.one_of(st.integers(0, 3), picture), min_size=1, max_size=5)
    wanted = {}
    for number in range(1, data.draw(st.integers(2, 6))):
        asking = asked(
            number,
            *data.draw(parts),
            max_tokens=data.draw(st.integers(1, 6)),
            placement=Placement(client=data.draw(st.sampled_from("ab"))),
            arrived_s=float(number),
        )
        wanted[number] = expected(asking)
        bench.add(asking)
        for _ in range(data.draw(st.integers(0, 3))):
            bench.step()
    bench.run()

    assert bench.tokens == wanted


def test_an_encoder_cache_drops_nothing_that_is_needed():
    cache = EncoderCache(10)
    assert cache.add(b"a", 4, ())
    assert cache.add(b"b", 4, ())
    cache.touch(b"a")

    assert not cache.add(b"c", 4, (b"a", b"b"))
    assert cache.add(b"c", 4, (b"a",))
    assert (b"a" in cache, b"b" in cache, cache.num_rows, len(cache)) == (True, False, 8, 2)
    assert cache.take_dropped() == (b"b",)
    assert cache.take_dropped() == ()


def test_a_large_picture_beside_decodes_is_shared_by_steps_and_alone_it_is_not():
    bench = Bench(num_spans=(200,), max_encoded=200, step_tokens=16, context=150)
    bench.add(request(1, [1, 2], sampling=upto(40)))
    bench.step()
    asking = asked(2, 3, ("mural", 40), 4, max_tokens=2)
    bench.add(asking)
    bench.run()
    bench.add(asked(3, 3, ("fresco", 40), 4, max_tokens=2))
    bench.run()

    shares = [(encoded([plan])[0], plan.encode_steps) for plan in bench.runner.steps]
    first = shares.index((["mural"], 3))  # 40 tokens, 16 a step
    assert shares[first : first + 4] == [(["mural"], 3), ([], 2), ([], 1), ([], 0)]
    # The token in front of it may be computed before; what reads it waits for the last share.
    reads = [
        plan.encode_steps for plan in bench.runner.steps for part in plan.slices
        if part.seq_id == 2 and part.stop > 1
    ]  # fmt: skip
    assert reads[0] == 1
    assert bench.tokens[2] == expected(asking)
    assert (["fresco"], 1) in shares


def test_where_the_last_decode_ends_the_rest_of_a_picture_is_seen_at_once():
    bench = Bench(num_spans=(200,), max_encoded=200, step_tokens=16, context=150)
    bench.add(request(1, [1, 2], sampling=upto(4)))
    bench.step()
    asking = asked(2, 3, ("mural", 100), 4, max_tokens=2)
    bench.add(asking)
    bench.run()

    shares = [plan.encode_steps for plan in bench.runner.steps if plan.encode_steps]
    assert shares[0] == 7
    assert shares[-1] == 1
    assert len(shares) < 7
    assert bench.tokens[2] == expected(asking)
