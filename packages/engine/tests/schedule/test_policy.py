from dataclasses import dataclass
from sys import maxsize

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spaninfer_engine.schedule.policy import (
    BURST,
    EVERY,
    FEW_TILES,
    LEVEL_S,
    LONG_EVERY,
    MANY_DECODES,
    SELDOM,
    plan_step,
    sort_key,
)
from spaninfer_engine.step.plan import Slice, Tuning

MIXED = 2048


def tuning(step_tokens, tile=1, pause=0, short=0):
    return Tuning(
        step_tokens=step_tokens,
        mixed_prompt_tokens=MIXED,
        prompt_logits=32,
        prompt_tile=tile,
        pause_tokens=pause,
        short_tokens=short,
    )


@dataclass
class Item:
    seq_id: int
    num_scheduled: int
    prefill_end: int
    max_pos: int = 1000
    logits_from: int = maxsize
    rope_seq_len: int = 0
    encoded_until: int = maxsize
    uncut: tuple[tuple[int, int], ...] = ()
    client: str = ""
    prompt_len: int = 10


def prompt(seq_id, done, prefill_end, **options):
    return Item(seq_id, done, prefill_end, **options)


def decode(seq_id, done, **options):
    return Item(seq_id, done, prefill_end=10, **options)


def part(seq_id, start, stop, *, samples, logits_from=None):
    if logits_from is None:
        logits_from = stop - samples
    return Slice(seq_id, start, stop, logits_from, samples)


CASES = {
    "nothing": ([], 8, []),
    "logits of prompts are few in a step, and those that want none are not held up": (
        [
            prompt(1, 0, 20, logits_from=0),
            prompt(2, 100, 900, logits_from=300),
            prompt(3, 0, 900, logits_from=0),
            prompt(4, 0, 5000),
        ],
        8192,
        [
            part(1, 0, 20, samples=True, logits_from=0),
            part(2, 100, 300 + 32 - 19, samples=False, logits_from=300),
            part(4, 0, 5000, samples=True),
        ],
    ),
    "of several clients, one has no more than half, and what is left goes in order": (
        [
            prompt(1, 0, 900, client="ann"),
            prompt(2, 0, 900, client="ann"),
            prompt(3, 0, 20, client="bob"),
            prompt(4, 0, 7, client="cid"),
        ],
        64,
        [part(1, 0, 37, samples=False), part(3, 0, 20, samples=True), part(4, 0, 7, samples=True)],
    ),
    "a prompt that wants logits leaves others what it cannot take": (
        [prompt(1, 0, 900, client="ann", logits_from=0), prompt(2, 0, 900, client="bob")],
        100,
        [part(1, 0, 32, samples=False, logits_from=0), part(2, 0, 68, samples=False)],
    ),
    "decodes go first and a long prompt fills what is left": (
        [prompt(1, 0, 100), decode(2, 41)],
        64,
        [part(2, 41, 42, samples=True), part(1, 0, 63, samples=False)],
    ),
    "beside a decode, which waits for them, prompts are computed in shorter pieces": (
        [prompt(1, 0, 1800), decode(2, 41), prompt(3, 0, 800)],
        8192,
        [
            part(2, 41, 42, samples=True),
            part(1, 0, 1800, samples=True),
            part(3, 0, 248, samples=False),
        ],
    ),
    "a prompt that fits draws from its last position": (
        [prompt(1, 0, 5)],
        8,
        [part(1, 0, 5, samples=True)],
    ),
    "a prompt goes on where it was": (
        [prompt(1, 60, 100)],
        64,
        [part(1, 60, 100, samples=True)],
    ),
    "prompts come in the given order": (
        [prompt(2, 0, 5), prompt(1, 0, 9), prompt(3, 0, 1)],
        8,
        [part(2, 0, 5, samples=True), part(1, 0, 3, samples=False)],
    ),
    "a step without room for prompts still decodes": (
        [decode(1, 10), prompt(3, 0, 5), decode(2, 20)],
        2,
        [part(1, 10, 11, samples=True), part(2, 20, 21, samples=True)],
    ),
    "more decodes than tokens are cut in order": (
        [decode(1, 10), decode(2, 10), decode(3, 10)],
        2,
        [part(1, 10, 11, samples=True), part(2, 10, 11, samples=True)],
    ),
    "one whose last token is in flight computes nothing": (
        [decode(1, 30, max_pos=30), decode(2, 30, max_pos=31)],
        8,
        [part(2, 30, 31, samples=True)],
    ),
    "log-probabilities of the prompt want every position's logits": (
        [prompt(1, 0, 10, logits_from=0)],
        8,
        [part(1, 0, 8, samples=False, logits_from=0)],
    ),
    "those that came already are not computed again": (
        [prompt(1, 0, 10, logits_from=6)],
        20,
        [part(1, 0, 10, samples=True, logits_from=6)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_planned_as_the_table_says(case):
    pending, step_tokens, expected = CASES[case]

    slices, chosen = plan_step(pending, tuning(step_tokens))

    assert slices == expected
    assert [item.seq_id for item in chosen] == [part.seq_id for part in slices]


def test_the_rope_length_travels_with_every_slice():
    pending = [decode(1, 20, rope_seq_len=7), prompt(2, 0, 5, rope_seq_len=5)]

    assert [item.rope_seq_len for item in plan_step(pending, tuning(8))[0]] == [7, 5]


@pytest.mark.parametrize(
    ("decodes", "waiting", "number", "computed"),
    [
        (MANY_DECODES, FEW_TILES * 256 + 90, 1, FEW_TILES * 256),
        (MANY_DECODES, FEW_TILES * 256, 1, FEW_TILES * 256),
        (MANY_DECODES, FEW_TILES * 256 - 1, 1, 0),
        (MANY_DECODES, FEW_TILES * 256 - 1, EVERY, (FEW_TILES - 1) * 256),
        (MANY_DECODES, 90, EVERY - 1, 0),
        (MANY_DECODES, 90, EVERY, 90),
        (MANY_DECODES, 5000, 3, MIXED),
        (MANY_DECODES - 1, 90, 1, 90),
        (MANY_DECODES - 1, 700, 1, 700),
    ],
)
def test_beside_many_decodes_prompts_fill_tiles_and_few_of_them_wait(
    decodes, waiting, number, computed
):
    pending = [*(decode(n, 41) for n in range(decodes)), prompt(900, 5, 5 + waiting)]

    slices, _ = plan_step(pending, tuning(8192, tile=256), number=number)

    assert sum(part.num_tokens for part in slices) == decodes + computed


def test_prompts_that_share_whole_tiles_are_cut_where_the_tiles_end():
    pending = [decode(n, 41) for n in range(MANY_DECODES)]
    pending += [prompt(901, 0, 300), prompt(902, 0, 300), prompt(903, 0, 100)]

    slices, _ = plan_step(pending, tuning(8192, tile=256), number=EVERY)

    assert slices[MANY_DECODES:] == [
        part(901, 0, 300, samples=True),
        part(902, 0, 212, samples=False),
    ]


def test_a_burst_is_computed_while_decodes_wait_and_then_they_have_their_turn():
    pending = [decode(1, 41), *(prompt(n, 0, 500) for n in range(10, 20)), decode(2, 77)]

    alone, _ = plan_step(pending, tuning(8192, pause=4000), number=6)
    together, _ = plan_step(pending, tuning(8192, pause=4000), number=7)

    assert alone == [part(n, 0, 500, samples=True) for n in range(10, 18)]
    assert [part.seq_id for part in together] == [1, 2, 10, 11, 12, 13, 14]


@pytest.mark.parametrize(
    "prompts",
    [
        [prompt(n, 0, 499) for n in range(8)],  # do not fill the pause
        [prompt(n, 0, 501) for n in range(40)],  # the eighth does not end in it
        [prompt(1, 0, 90_000), prompt(2, 0, 90_000)],
        [prompt(n, 0, 501, logits_from=0) for n in range(9)],  # logits are too few for a step
        [],
    ],
)
def test_where_few_requests_would_begin_no_decode_waits(prompts):
    slices, _ = plan_step([*prompts, decode(901, 41)], tuning(8192, pause=4000), number=6)

    assert slices[0] == part(901, 41, 42, samples=True)


def answered(seq_id, num_tokens, client):
    return decode(seq_id, 10 + num_tokens, client=client)


# What is pending, and who takes part in steps 1, 2 and 3; in every fourth, all do.
TURNS = {
    "two clients": ([answered(1, 99, "ann"), answered(2, 3, "bob")], [2]),
    "short prompts, of other clients": (
        [answered(1, 99, "ann"), prompt(2, 0, 8, client="bob")],
        [2],
    ),
    "what is long by one token": ([answered(1, 8, "ann"), answered(2, 7, "bob")], [2]),
    "what is short by one token": ([answered(1, 7, "ann"), answered(2, 7, "bob")], [1, 2]),
    "long ones of both, and a short one of both": (
        [
            answered(1, 99, "ann"),
            answered(2, 3, "bob"),
            answered(3, 99, "bob"),
            answered(4, 3, "ann"),
        ],
        [2, 4],
    ),
    "a client's own short answers are no reason": (
        [answered(1, 99, "ann"), answered(2, 3, "ann")],
        [1, 2],
    ),
    "whose short ones they are does not wait for others' long ones either": (
        [answered(1, 99, "ann"), answered(2, 3, "ann"), answered(3, 99, "bob")],
        [1, 2],
    ),
    "all are long": (
        [answered(1, 99, "ann"), answered(2, 88, "bob"), prompt(3, 0, 9, client="cid")],
        [1, 2, 3],
    ),
    "a long prompt": ([answered(1, 3, "ann"), prompt(2, 0, 9, client="bob")], [1]),
    "a long prompt, of which little is left": (
        [answered(1, 3, "ann"), prompt(2, 92, 100, client="bob", prompt_len=100)],
        [1, 2],
    ),
    "short prompts that are long together": (
        [
            answered(1, 3, "ann"),
            prompt(2, 0, 5, client="bob"),
            prompt(3, 0, 4, client="bob"),
            prompt(4, 0, 4, client="ann"),
        ],
        [1, 4],
    ),
    "many short prompts, beside more of another client": (
        [
            prompt(1, 0, 2, client="ann"),
            prompt(2, 0, 9, client="ann"),
            prompt(3, 0, 12, client="bob"),
        ],
        [1, 2],
    ),
    "what is short waits for its media": (
        [answered(1, 99, "ann"), prompt(2, 0, 8, client="bob", encoded_until=0)],
        [1],
    ),
}


@pytest.mark.parametrize("case", TURNS)
def test_long_requests_leave_steps_to_the_short_ones_of_other_clients(case):
    pending, most_steps = TURNS[case]
    everybody = sorted(item.seq_id for item in pending if item.encoded_until)

    def taking_part(number, **options):
        _, chosen = plan_step(pending, tuning(64, **options), number=number)
        return sorted(item.seq_id for item in chosen)

    assert LONG_EVERY == 4
    steps = [taking_part(number, short=8) for number in range(8)]

    assert steps == 2 * [everybody, most_steps, most_steps, most_steps]
    assert {tuple(taking_part(number)) for number in range(4)} == {tuple(everybody)}


@pytest.mark.parametrize(
    ("had", "every"),
    [
        ({}, LONG_EVERY),
        ({"ann": 100, "bob": 25}, LONG_EVERY),
        ({"ann": 100, "bob": 26}, SELDOM),
        ({"bob": 1}, SELDOM),
        ({"ann": 100, "bob": 26, "cid": 104}, LONG_EVERY),
    ],
)
def test_long_requests_of_who_has_had_more_lately_take_part_more_seldom(had, every):
    pending = [answered(1, 3, "ann"), answered(2, 99, "bob"), answered(3, 3, "cid")]

    def steps_of(seq_id):
        steps = (
            plan_step(pending, tuning(64, short=8), number=number, had=had)[1]
            for number in range(2 * SELDOM)
        )
        return sum(seq_id in [item.seq_id for item in chosen] for chosen in steps)

    assert [steps_of(each) for each in (1, 2, 3)] == [2 * SELDOM, 2 * SELDOM // every, 2 * SELDOM]


@pytest.mark.parametrize(
    ("pending", "had", "computed"),
    [
        ([answered(1, 3, "ann"), prompt(2, 0, 4000, client="bob")], {}, MIXED // 4),
        ([answered(1, 9, "ann"), prompt(2, 0, 4000, client="bob")], {}, MIXED // 2),
        ([answered(1, 3, "ann"), prompt(2, 0, 4000, client="ann")], {}, MIXED),
        (
            [answered(1, 3, "ann"), prompt(2, 0, 4000, client="ann")],
            {"ann": 1, "bob": 1},
            MIXED // 2,
        ),
        ([prompt(1, 0, 4000, client="ann")], {}, 4000),
        ([prompt(1, 0, 4000, client="ann")], {"ann": 1, "bob": 1}, 8),
        (
            [prompt(1, 0, 4000, client="ann"), prompt(2, 0, 9, client="bob")],
            {},
            8,
        ),
    ],
)
def test_where_clients_share_the_engine_prompts_come_in_smaller_parts(pending, had, computed):
    def tokens_of_prompts(**options):
        slices, _ = plan_step(pending, tuning(8192, **options), had=had)
        return sum(part.num_tokens for part in slices if part.seq_id != 1 or part.num_tokens > 1)

    assert tokens_of_prompts(short=8) == computed
    assert tokens_of_prompts() >= computed  # not where rows are cheap


items = st.builds(
    Item,
    seq_id=st.integers(0, 1000),
    num_scheduled=st.integers(0, 600),
    prefill_end=st.integers(1, 600),
    max_pos=st.integers(550, 700),
    logits_from=st.sampled_from([maxsize, maxsize, maxsize, 0]),
)


@given(
    pending=st.lists(items, max_size=120),
    pause=st.sampled_from([0, 256, 1000, 4096]),
    tile=st.sampled_from([1, 256]),
    number=st.integers(0, 9),
)
def test_a_decode_waits_for_one_step_of_few_tokens_at_the_most(pending, pause, tile, number):
    decoding = [item for item in pending if item.prefill_end <= item.num_scheduled < item.max_pos]

    now, chosen = plan_step(pending, tuning(8192, pause=pause, tile=tile), number=number)
    _, next_chosen = plan_step(pending, tuning(8192, pause=pause, tile=tile), number=number + 1)

    if chosen[: len(decoding)] != decoding:
        assert decoding == next_chosen[: len(decoding)]
        assert sum(part.num_tokens for part in now) == pause
        assert sum(part.samples for part in now) >= BURST


@pytest.mark.parametrize("levels", [1, 2, 7])
def test_a_level_of_priority_overtakes_whom_it_does_not_come_too_late_for(levels):
    waiting = sort_key(0, 1000.0)

    assert sort_key(-levels, 1000.0 + levels * LEVEL_S - 1) < waiting
    assert sort_key(-levels, 1000.0 + levels * LEVEL_S + 1) > waiting


def test_equal_priorities_go_by_arrival():
    assert sort_key(5, 1.0) < sort_key(5, 2.0)


# ---- what one step computes whole ----------------------------------------------------------------


def of_slices(plan):
    return [(each.seq_id, each.start, each.stop) for each in plan[0]]


def test_a_slice_ends_in_front_of_an_image_that_it_would_cut():
    image = prompt(1, 0, 60, uncut=((10, 26), (30, 46)))

    assert of_slices(plan_step([image], tuning(20))) == [(1, 0, 10)]
    assert of_slices(plan_step([image], tuning(26))) == [(1, 0, 26)]
    assert of_slices(plan_step([image], tuning(45))) == [(1, 0, 30)]
    assert of_slices(plan_step([image], tuning(100))) == [(1, 0, 60)]


def test_an_image_of_which_a_part_is_cached_is_finished_in_one_step():
    image = prompt(1, 18, 60, uncut=((10, 26),))

    assert of_slices(plan_step([image], tuning(20))) == [(1, 18, 38)]
    assert of_slices(plan_step([image, prompt(2, 0, 5)], tuning(7))) == [(2, 0, 5)]


def test_an_image_that_does_not_fit_beside_decodes_takes_the_place_of_some_every_other_step():
    decodes = [decode(seq_id, 50) for seq_id in range(2, 12)]
    image = prompt(1, 10, 60, uncut=((10, 26),))

    assert of_slices(plan_step([image, *decodes], tuning(20), number=1)) == [
        (each.seq_id, 50, 51) for each in decodes
    ]
    assert of_slices(plan_step([image, *decodes], tuning(20), number=2)) == [
        *((each.seq_id, 50, 51) for each in decodes[:4]),
        (1, 10, 26),
    ]


def test_half_a_step_for_each_client_is_enough_for_the_first_ones_image():
    first = prompt(1, 10, 60, uncut=((10, 26),), client="ann")
    other = prompt(2, 0, 60, client="bob")

    assert of_slices(plan_step([first, other], tuning(20))) == [(1, 10, 26), (2, 0, 4)]


def test_an_image_is_waited_for_only_by_who_needs_it():
    behind = prompt(1, 10, 60, uncut=((10, 26),), encoded_until=10)

    assert of_slices(plan_step([behind, decode(2, 50)], tuning(20))) == [(2, 50, 51)]
