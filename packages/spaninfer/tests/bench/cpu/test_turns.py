"""Programs timed in alternation, while CPUs are whole cores."""

from spaninfer.bench.cpu.turns import Cores, in_turns
from spaninfer.bench.cpu.workloads import WORKLOADS

BY_NAME = {workload.name: workload for workload in WORKLOADS}
PREFILL = BY_NAME["prefill256"]
VOCAB = 1000


def cores(*rates):
    """CPUs that multiply at these rates, and at the last one from then on."""
    left = list(rates)
    return Cores("int8", lambda _kind: left.pop(0) if len(left) > 1 else left[0])


def counting(given, name, seconds):
    def run(batch):
        given.append((name, batch))
        return seconds

    return run


def test_programs_get_the_same_prompts_in_turns_and_the_first_round_does_not_count():
    given = []
    programs = {"ours": counting(given, "ours", 1.0), "theirs": counting(given, "theirs", 2.0)}

    turns = in_turns(PREFILL, programs, VOCAB, 3, cores(1500))

    assert turns.values == {"ours": [256.0] * 3, "theirs": [128.0] * 3}
    assert turns.left_out == 0
    names = [name for name, _ in given]
    assert names == [*("theirs", "ours"), *("ours", "theirs")] * 2
    for (_, first), (_, second) in zip(given[::2], given[1::2], strict=True):
        assert first == second
    assert len({batch.prompts for _, batch in given}) == 4


def test_the_first_round_of_a_long_answer_is_short():
    given = []

    in_turns(BY_NAME["decode64_bs8"], {"ours": counting(given, "ours", 1.0)}, VOCAB, 1, cores(1500))

    assert [batch.output_lens for _, batch in given] == [(8,) * 8, (64,) * 8]


def test_a_round_counts_where_the_cores_are_whole_before_and_after_it():
    times = iter([9.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0])

    # Before the first round, after it, after the second ...
    rates = (1500, 1490, 1210, 800, 1500, 1190, 1500)
    turns = in_turns(PREFILL, {"ours": lambda _: next(times)}, VOCAB, 2, cores(*rates))

    assert turns.values == {"ours": [256.0, 8.0]}
    assert turns.left_out == 4


def test_rates_that_grow_leave_no_round_out_and_later_ones_are_held_to_the_best():
    turns = in_turns(PREFILL, {"ours": lambda _: 1.0}, VOCAB, 3, cores(100, 200, 300, 400, 300))

    assert turns.values == {"ours": [256.0] * 3}
    assert turns.left_out == 6


def test_cores_that_are_never_whole_again_are_measured_as_they_are():
    turns = in_turns(PREFILL, {"ours": lambda _: 1.0}, VOCAB, 2, cores(1500, 700))

    assert turns.values == {"ours": [256.0] * 2}
    assert turns.left_out == 4


def test_what_cores_do_at_first_is_their_best():
    assert Cores("float32").are_whole()
