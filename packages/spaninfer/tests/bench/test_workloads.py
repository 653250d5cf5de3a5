"""Workloads, against those of the program whose figures we compare with."""

from itertools import islice
from random import Random

import pytest
from spaninfer.bench.workloads import (
    DRAWN,
    GREEDY,
    WORKLOADS,
    Prompts,
    mixed_lens,
    rehearsed,
    warm_up,
)

VOCAB = 152_064
BY_NAME = {workload.name: workload for workload in WORKLOADS}


@pytest.fixture(scope="module")
def batches():
    """The batches of every workload of the first run, in order."""
    prompts = Prompts(VOCAB, seed=0)
    return {"warm_up": (warm_up(prompts),)} | {
        workload.name: tuple(workload.batches(prompts)) for workload in WORKLOADS
    }


def test_the_mixed_workload_has_as_many_tokens_in_and_out_as_its_definition_says():
    ins, outs = mixed_lens()

    assert (len(ins), sum(ins), sum(outs)) == (1024, 349_264, 233_075)


def test_prompts_are_drawn_one_after_the_other_from_one_stream(batches):
    drawn = [
        token
        for group in batches.values()
        for batch in group
        for prompt in batch.prompts
        for token in prompt
    ]
    random = Random(0)
    first = [random.randrange(100, VOCAB - 1000) for _ in range(8 * 64 + 2 * 512)]

    assert tuple(islice(drawn, len(first))) == tuple(first)


def test_every_workload_of_the_table_is_there_once():
    assert tuple(BY_NAME) == (
        *(f"tpot_bs{size}" for size in (1, 8, 32, 64, 128, 256)),
        *("ttft_512", "ttft_4000", "ttft_8192"),
        *("hit0.25", "hit0.5", "hit0.75", "hit0.9", "hit0.99"),
        *("prefill", "mixed1024", "tpot_bs64_drawn", "mixed1024_list"),
    )


@pytest.mark.parametrize("size", [1, 256])
def test_the_time_per_token_is_that_of_128_tokens_between_a_short_and_a_long_answer(batches, size):
    workload = BY_NAME[f"tpot_bs{size}"]
    short, long = batches[workload.name]

    assert {len(prompt) for prompt in short.prompts + long.prompts} == {512}
    assert len(set(short.prompts + long.prompts)) == 2 * size  # nothing is found in the cache
    assert (short.output_lens, long.output_lens) == ((16,) * size, (144,) * size)
    assert workload.values((short, long), (1.0, 1.64)) == pytest.approx([5.0])


def test_the_time_to_the_first_token_is_reported_prompt_by_prompt(batches):
    group = batches["ttft_4000"]

    assert [(len(batch.prompts[0]), batch.output_lens) for batch in group] == [(4000, (1,))] * 5
    assert BY_NAME["ttft_4000"].values(group, (1, 2, 3, 4, 5)) == [1e3, 2e3, 3e3, 4e3, 5e3]


@pytest.mark.parametrize(("name", "hit_len"), [("hit0.25", 1000), ("hit0.99", 3960)])
def test_a_hit_shares_its_beginning_with_a_prompt_that_went_before_and_no_more(
    batches, name, hit_len
):
    (before,), *after = (batch.prompts for batch in batches[name])

    assert before == batches["hit0.5"][0].prompts[0]
    assert len(after) == 5
    for (prompt,) in after:
        assert len(prompt) == 4000
        assert prompt[:hit_len] == before[:hit_len]
        assert prompt[hit_len] != before[hit_len]
    assert len(BY_NAME[name].values(batches[name], range(6))) == 5  # the one before is not counted


def test_rates_are_tokens_of_the_whole_batch_by_its_time(batches):
    prefill, mixed = batches["prefill"], batches["mixed1024"]

    assert BY_NAME["prefill"].values(prefill, (2.0,)) == [16 * 8000 / 2.0]
    assert BY_NAME["mixed1024"].values(mixed, (10.0,)) == [23_307.5]
    assert [len(prompt) for prompt in mixed[0].prompts] == list(mixed_lens()[0])


def test_the_mixed_workload_comes_one_by_one_and_as_a_list(batches):
    (one_by_one,), (listed,) = batches["mixed1024"], batches["mixed1024_list"]

    assert (one_by_one.as_list, listed.as_list) == (False, True)
    assert listed.output_lens == one_by_one.output_lens
    assert rehearsed(listed).as_list


def test_tokens_are_sampled_in_one_workload_and_greedy_in_all_others(batches):
    for name, group in batches.items():
        wanted = DRAWN if name == "tpot_bs64_drawn" else GREEDY
        assert [batch.sampling for batch in group] == [wanted] * len(group)


def test_a_warm_up_is_short_and_of_the_same_kind(batches):
    mixed, drawn = (rehearsed(batches[name][-1]) for name in ("mixed1024", "tpot_bs64_drawn"))

    assert (len(mixed.prompts), max(mixed.output_lens), mixed.sampling) == (256, 16, GREEDY)
    assert (len(drawn.prompts), set(drawn.output_lens), drawn.sampling) == (64, {16}, DRAWN)


def test_other_runs_have_other_prompts():
    first, second = (Prompts(VOCAB, seed).fresh(64) for seed in (0, 1))

    assert first != second


def test_small_vocabularies_are_used_whole():
    prompt = Prompts(512, seed=0).fresh(4000)

    assert (min(prompt), max(prompt)) == (0, 511)
