from collections import defaultdict
from itertools import pairwise

import pytest
from checking import alone
from driving import Bench, request
from spaninfer_engine.cache.rope_state import RopeState
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.request.request import FinishReason, Placement, SamplingParams
from spaninfer_engine.schedule.policy import LEVEL_S, LONG_EVERY, SELDOM
from spaninfer_engine.schedule.shares import PERIOD_S
from spaninfer_engine.step.plan import StepResult

PROMPT = list(range(10))


def upto(max_tokens, **options):
    return SamplingParams(max_tokens=max_tokens, **options)


def computed(bench, seq_id):
    """Return how many positions were computed for a request, counting every time."""
    return sum(
        part.num_tokens
        for plan in bench.runner.steps
        for part in plan.slices
        if part.seq_id == seq_id
    )


def test_a_new_request_joins_the_decodes_that_are_under_way():
    bench = Bench(num_spans=(50,))
    bench.add(request(1, PROMPT, sampling=upto(10)))
    bench.step()
    bench.add(request(2, PROMPT[:3], sampling=upto(10)))

    bench.step()

    assert [part[:3] for part in bench.runner.steps[-1].slices] == [(1, 10, 11), (2, 0, 3)]


def test_a_long_prompt_is_computed_in_chunks_while_others_decode():
    bench = Bench(num_spans=(50,), step_tokens=8)
    bench.add(request(1, PROMPT[:2], sampling=upto(10)))
    bench.step()
    bench.add(request(2, range(20), sampling=upto(3)))
    bench.run()

    slices = [part[:3] for plan in bench.runner.steps for part in plan.slices if part[0] == 2]
    assert slices[:3] == [(2, 0, 7), (2, 7, 14), (2, 14, 20)]


def test_newcomers_without_end_hold_a_running_request_up_in_every_second_step_at_the_most():
    bench = Bench(num_spans=(4000,), max_running=900, step_tokens=24, pause_tokens=16)
    bench.add(request(1, PROMPT[:2], sampling=upto(30)))
    bench.step()
    for number in range(100, 1100, 10):
        for newcomer in range(number, number + 10):
            bench.add(request(newcomer, [newcomer % 50, 7], sampling=upto(2)))
        bench.step()
    bench.run()

    takes_part = [any(part[0] == 1 for part in plan.slices) for plan in bench.runner.steps]
    last = len(takes_part) - takes_part[::-1].index(True)
    assert takes_part[:last].count(False) >= 10
    assert (False, False) not in pairwise(takes_part[:last])


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_bursts_change_no_token_with_hits_in_the_cache(depth):
    bench = Bench(num_spans=(60,), max_running=90, step_tokens=24, pause_tokens=20, depth=depth)
    prompts = {}
    for step in range(40):
        burst = range(100 + 20 * step, 116 + 20 * step) if step % 5 == 2 else ()
        for number in burst:
            prompts[number] = [number % 3, *range(7)] if number % 8 == 0 else [number % 50, 1]
            bench.add(request(number, prompts[number], sampling=upto(6), seed=number))
        bench.step()
    bench.run()

    for number, prompt in prompts.items():
        limit = len(prompt) + 6
        assert bench.tokens[number] == alone(prompt, seed=number, limit=limit, sampling=upto(6))
    assert any(is_pause(plan) for plan in bench.runner.steps)
    assert bench.scheduler.counts.prefix_hit_tokens > 0


def test_no_decode_pauses_while_requests_wait_for_a_place():
    bench = Bench(num_spans=(400,), max_running=16, step_tokens=24, pause_tokens=16, depth=1)
    for number in range(1, 100):
        bench.add(request(number, [number % 50, 7], sampling=upto(4)))
    bench.run()

    taken_part = defaultdict(list)
    for number, plan in enumerate(bench.runner.steps):
        for part in plan.slices:
            taken_part[part.seq_id].append(number)
    for number in range(1, 70):  # behind them, there are places for all
        first, *_, last = taken_part[number]
        assert taken_part[number] == [*range(first, last + 1)]


def test_a_burst_takes_no_place_from_a_request_whose_turn_comes_before():
    bench = Bench(num_spans=(400,), max_running=8, step_tokens=8)
    bench.add(request(1, PROMPT[:2], sampling=upto(20)))
    bench.step()
    for number in range(10, 30):
        bench.add(request(number, [number] * 14, sampling=upto(1), arrived_s=5.0))
    bench.step()
    bench.add(request(99, PROMPT[:3], sampling=upto(1), arrived_s=2.0))
    bench.step()

    assert [part.seq_id for part in bench.runner.steps[-1].slices][:2] == [1, 99]
    bench.run()
    assert set(bench.ended) == {1, *range(10, 30), 99}


def test_behind_anothers_request_a_lone_prompt_comes_in_parts_for_a_while():
    bench = Bench(num_spans=(400,), step_tokens=40, short_tokens=4)
    parts = []
    for client, seconds_later in (("one", 0.0), ("other", 0.5), ("other", 3 * PERIOD_S)):
        bench.now += seconds_later
        number = 1 + len(parts)
        placement = Placement(client=client)
        bench.add(request(number, [number] * 30, sampling=upto(1), placement=placement))
        bench.run()
        steps = (part for plan in bench.runner.steps for part in plan.slices)
        parts.append([part.num_tokens for part in steps if part.seq_id == number])

    assert parts == [[30], [4, 4, 22], [30]]  # a step takes a second here


def test_a_long_answer_of_who_has_had_more_waits_longer_for_short_ones():
    bench = Bench(num_spans=(400,), short_tokens=4)
    greedy, brief = Placement(client="greedy"), Placement(client="brief")
    bench.add(request(1, PROMPT[:2], sampling=upto(100), placement=greedy))
    for _ in range(5 * LONG_EVERY):
        bench.step()
    bench.add(request(2, PROMPT[:3], sampling=upto(3), placement=brief))
    bench.step()

    assert len(bench.runner.steps) % SELDOM != 0
    assert [part.seq_id for part in bench.runner.steps[-1].slices] == [2]


def test_a_long_prompt_of_one_client_does_not_keep_anothers_waiting():
    bench = Bench(num_spans=(400,), max_running=8, step_tokens=8)
    one, other = Placement(client="one"), Placement(client="other")
    for number in range(10, 20):
        bench.add(request(number, [number] * 40, sampling=upto(1), placement=one))
    bench.step()
    bench.add(request(99, PROMPT[:4], sampling=upto(1), placement=other, arrived_s=5.0))
    bench.step()

    slices = bench.runner.steps[-1].slices
    assert [(part.seq_id, part.num_tokens) for part in slices] == [(10, 4), (99, 4)]


def test_prompts_start_that_fill_a_step_and_no_more():
    bench = Bench(num_spans=(400,), max_running=50, step_tokens=16)
    for number in range(1, 20):
        bench.add(request(number, [number] * 5, sampling=upto(1)))
    bench.step()

    assert [part.num_tokens for part in bench.runner.steps[-1].slices] == [5, 5, 5, 1]
    assert bench.scheduler.num_waiting == 15


def is_pause(plan):
    """Does the step hold prompts alone, and not as many as where nothing decodes?"""
    return plan.num_tokens == 20 and min(part.num_tokens for part in plan.slices) > 1


def test_the_same_prompt_again_is_computed_from_the_last_span_on():
    bench = Bench(num_spans=(50,))
    bench.add(request(1, PROMPT, sampling=upto(1)))
    bench.run()
    (seq,) = bench.add(request(2, PROMPT, sampling=upto(1)))
    bench.run()

    assert seq.cached_len == 8
    assert computed(bench, 2) == 2


def test_the_last_token_of_a_prompt_is_computed_even_if_all_its_spans_are_there():
    bench = Bench(num_spans=(50,))
    bench.add(request(1, PROMPT[:8], sampling=upto(4)))
    bench.run()
    (seq,) = bench.add(request(2, PROMPT[:8], sampling=upto(4)))
    bench.run()

    assert seq.cached_len == 4
    assert bench.tokens[2] == bench.tokens[1]


def test_a_prompt_is_hashed_when_it_has_been_computed():
    bench = Bench(num_spans=(50,))
    (seq,) = bench.add(request(1, PROMPT, sampling=upto(1)))

    bench.runner.submit(bench.scheduler.plan(0.0))
    assert len(seq.hasher.hashes) == 1  # enough to see that nothing is there
    bench.scheduler.apply(bench.runner.run_next(), 0.0)
    assert len(seq.hasher.hashes) == 1

    bench.scheduler.publish_computed()
    assert len(seq.hasher.hashes) == 2
    assert bench.scheduler.kv_cache.pools[0].num_cached == 2


def test_spans_come_back_before_the_next_plan_or_when_there_is_time():
    bench = Bench(num_spans=(5,), step_tokens=32)
    pool = bench.scheduler.kv_cache.pools[0]
    for number in (1, 2):
        bench.add(request(number, [number] * 18, sampling=upto(1)))

    bench.runner.submit(bench.scheduler.plan(0.0))
    bench.scheduler.apply(bench.runner.run_next(), 0.0)
    assert pool.num_in_use == 5  # the answer can go before its spans do
    assert [part.seq_id for part in bench.scheduler.plan(1.0).slices] == [2]


def test_generated_tokens_are_found_by_the_next_turn():
    bench = Bench(num_spans=(50,))
    bench.add(request(1, PROMPT, sampling=upto(12)))
    bench.run()
    turn = [*PROMPT, *bench.tokens[1], 3, 4]
    (seq,) = bench.add(request(2, turn, sampling=upto(2)))
    bench.run()

    assert seq.cached_len == 20  # of 21 positions computed


def test_prompt_logprobs_pass_over_a_prefix_that_is_there():
    bench = Bench(num_spans=(50,))
    bench.add(request(1, PROMPT, sampling=upto(1)))
    bench.run()
    (seq,) = bench.add(request(2, PROMPT, sampling=upto(1, prompt_logprobs=0)))
    bench.run()

    assert seq.cached_len == 0
    assert [item.token_id for item in seq.prompt_logprobs()] == PROMPT[1:]


def test_the_choices_of_a_request_compute_its_prompt_once():
    bench = Bench(num_spans=(100,), share=False, step_tokens=64)
    seqs = bench.add(request(1, range(40), sampling=upto(5, n=4), seed=7))
    bench.run()

    assert [computed(bench, 1 + index) for index in range(4)] == [44, 8, 8, 8]
    for seq in seqs:
        assert bench.tokens[seq.seq_id] == alone(range(40), seed=seq.seed, limit=45)


def test_without_sharing_requests_do_not_find_each_other():
    bench = Bench(num_spans=(50,), share=False)
    bench.add(request(1, PROMPT, sampling=upto(1)))
    bench.run()
    (seq,) = bench.add(request(2, PROMPT, sampling=upto(1)))
    bench.run()

    assert seq.cached_len == 0


def test_when_spans_run_out_the_latest_waits_and_still_gets_its_tokens():
    bench = Bench(num_spans=(7,), step_tokens=32, share=False)
    for number in (1, 2):
        bench.add(request(number, [number] * 4, sampling=upto(18), seed=number))
    bench.run()

    assert bench.scheduler.counts.preemptions > 0
    assert computed(bench, 1) == 4 + 17  # the first was never preempted
    assert computed(bench, 2) > 4 + 17
    for number in (1, 2):
        assert bench.tokens[number] == alone([number] * 4, seed=number, limit=22)


def test_a_request_of_higher_priority_takes_the_place_of_a_lower_one():
    bench = Bench(num_spans=(50,), max_running=1)
    bench.add(request(1, PROMPT, sampling=upto(20), placement=Placement(priority=1)))
    bench.step()
    bench.add(request(2, PROMPT, sampling=upto(3)))
    bench.run()

    assert list(bench.ended) == [2, 1]
    assert bench.tokens[1] == alone(PROMPT, seed=0, limit=30)


def test_requests_of_higher_priority_that_never_cease_starve_no_other():
    bench = Bench(num_spans=(50,), max_running=1)
    bench.add(request(1, PROMPT, sampling=upto(3), placement=Placement(priority=3)))
    for number in range(2, 100):  # each takes three steps, of a second
        bench.add(request(number, PROMPT, sampling=upto(3), arrived_s=bench.now))
        while number not in bench.ended and 1 not in bench.ended:
            bench.step()
        if 1 in bench.ended:
            break

    assert 3 * LEVEL_S <= bench.now <= 3 * LEVEL_S + 10
    assert bench.tokens[1] == alone(PROMPT, seed=0, limit=len(PROMPT) + 3)


def test_a_later_request_of_equal_priority_waits():
    bench = Bench(num_spans=(50,), max_running=1)
    bench.add(request(1, PROMPT, sampling=upto(20)))
    bench.step()
    bench.add(request(2, PROMPT, sampling=upto(3)))
    bench.run()

    assert list(bench.ended) == [1, 2]
    assert bench.scheduler.counts.preemptions == 0


def test_a_stopped_request_frees_its_spans_at_once_when_nothing_is_in_flight():
    bench = Bench(num_spans=(50,))
    bench.add(request(1, PROMPT, sampling=upto(20)))
    bench.step()

    bench.scheduler.stop((1,), now=5.0)
    bench.scheduler.publish_computed()

    assert bench.scheduler.kv_cache.pools[0].num_in_use == 0
    assert not bench.step()
    assert bench.ended[1].reason is FinishReason.STOPPED


def test_a_stopped_request_frees_its_spans_when_its_steps_have_finished():
    bench = Bench(num_spans=(50,), depth=2)
    bench.add(request(1, PROMPT, sampling=upto(20)))
    bench.step()
    assert len(bench.runner.in_flight) == 1

    bench.scheduler.stop((1,), now=5.0)
    bench.scheduler.publish_computed()

    pool = bench.scheduler.kv_cache.pools[0]
    assert pool.num_pending_free == 3
    bench.step()
    assert pool.num_pending_free == 0
    assert bench.tokens[1] == alone(PROMPT, seed=0, limit=30)[:1]


def test_a_deadline_ends_requests_wherever_they_are():
    bench = Bench(num_spans=(50,), max_running=1)
    for number in (1, 2):
        bench.add(request(number, PROMPT, sampling=upto(20), placement=Placement(deadline_s=3.5)))
    bench.run()

    assert [end.reason for end in bench.ended.values()] == [FinishReason.DEADLINE] * 2
    assert bench.tokens[1] == alone(PROMPT, seed=0, limit=30)[:3]
    assert bench.tokens[2] == []


def test_deadlines_are_forgotten_with_their_requests():
    bench = Bench(num_spans=(50,))
    for number in range(1, 600):
        lives = number == 480  # from when on deadlines are forgotten once more
        sampling, due = (upto(44), 510.5) if lives else (upto(1), 1e9)
        bench.add(request(number, PROMPT, sampling=sampling, placement=Placement(deadline_s=due)))
        bench.step()

    assert len(bench.scheduler._deadlines) <= 105
    assert bench.ended[480].reason is FinishReason.DEADLINE


def test_end_ids_end_a_request_and_later_steps_in_flight_do_not_count():
    expected = alone(PROMPT, seed=0, limit=30)
    bench = Bench(num_spans=(50,), depth=3)
    bench.add(request(1, PROMPT, sampling=upto(20), end_ids=(expected[4],)))
    bench.run()

    assert bench.tokens[1] == expected[:5]
    assert bench.ended[1].matched == expected[4]
    assert bench.ended[1].usage.output_len == 5


def test_a_request_that_fails_ends_alone_and_its_spans_are_not_shared():
    bench = Bench(num_spans=(50,))
    bench.runner.fails[1] = 10
    bench.add(request(1, PROMPT, sampling=upto(20)))
    bench.add(request(2, PROMPT[:5], sampling=upto(20)))
    bench.run()
    (seq,) = bench.add(request(3, PROMPT, sampling=upto(2)))
    bench.run()

    assert bench.ended[1].reason is FinishReason.ERROR
    assert isinstance(bench.ended[1].error, FloatingPointError)
    assert bench.tokens[2] == alone(PROMPT[:5], seed=0, limit=25)
    assert seq.cached_len <= 4  # what request 2 has computed


def test_choices_that_wait_for_the_first_ones_prompt_are_counted_among_those_that_wait():
    bench = Bench(num_spans=(50,))
    counts = []
    bench.add(request(1, PROMPT, sampling=upto(5, n=3)))

    for steps in (0, 1, 1):
        for _ in range(steps):
            bench.step()
        counts.append((bench.scheduler.num_waiting, bench.scheduler.num_running))

    assert counts == [(3, 0), (2, 1), (0, 3)]


def test_when_the_first_choice_fails_the_others_still_run():
    bench = Bench(num_spans=(50,))
    bench.runner.fails[1] = 10
    bench.add(request(1, PROMPT, sampling=upto(5, n=2)))
    bench.run()

    assert bench.ended[1].reason is FinishReason.ERROR
    assert bench.tokens[2] == alone(PROMPT, seed=1, limit=15)


def test_keys_are_computed_again_when_the_length_demands_other_frequencies():
    rotation = RopeState(lambda length: ((1,),) if length > 12 else (), recompute_beyond=12)
    bench = Bench(num_spans=(50,), rotation=rotation)
    bench.add(request(1, PROMPT, sampling=upto(8)))
    bench.run()

    slices = [part[1:3] + part[5:] for plan in bench.runner.steps for part in plan.slices]
    assert slices[:4] == [(0, 10, 10), (10, 11, 10), (11, 12, 10), (0, 13, 13)]
    assert bench.scheduler.counts.preemptions == 0
    assert bench.tokens[1] == alone(PROMPT, seed=0, limit=18)


def test_the_runner_may_forget_a_request_with_the_next_plan_after_its_end():
    bench = Bench(num_spans=(50,))
    bench.add(request(1, PROMPT, sampling=upto(1)))
    bench.run()
    bench.add(request(2, PROMPT, sampling=upto(1)))
    bench.run()

    assert [plan.finished for plan in bench.runner.steps] == [(), (1,)]
    assert [[entry.seq_id for entry in plan.new_sequences] for plan in bench.runner.steps] == [
        [1],
        [2],
    ]


def test_a_window_group_too_small_for_its_window_is_refused_with_the_numbers():
    with pytest.raises(ConfigError, match="cache group 1 has 4 spans of 4 tokens"):
        Bench(num_spans=(50, 4), windows=(None, 12), step_tokens=16)


def test_a_result_that_was_not_due_is_a_bug_that_is_found():
    bench = Bench(num_spans=(50,))
    bench.add(request(1, PROMPT))
    bench.scheduler.plan(0.0)

    with pytest.raises(AssertionError, match="result 7 came, 1 was due"):
        bench.scheduler.apply(StepResult(7, (1,), {}, {}, {}), 0.0)
