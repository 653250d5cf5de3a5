"""Workloads of the comparison of engine and llama.cpp."""

import pytest
from spaninfer.bench.cpu.engine import records_of
from spaninfer.bench.cpu.formats import OURS
from spaninfer.bench.cpu.sides import LLAMA, Side
from spaninfer.bench.cpu.turns import Turns
from spaninfer.bench.cpu.workloads import CONTEXT, MAX_REQUESTS, ROWS, WORKLOADS
from spaninfer.bench.records import is_rate
from spaninfer.bench.workloads import Prompts

VOCAB = 151_936
BY_NAME = {workload.name: workload for workload in WORKLOADS}


@pytest.mark.parametrize(
    ("name", "prompts", "tokens", "rate"),
    [
        ("decode64_bs1", [1], [64], 32.0),
        ("decode64_bs8", [1] * 8, [64] * 8, 256.0),
        ("prefill256", [256], [1], 128.0),
    ],
)
def test_a_workload_is_one_batch_and_its_rate_counts_tokens_out_or_those_of_the_prompt(
    name, prompts, tokens, rate
):
    (batch,) = BY_NAME[name].batches(Prompts(VOCAB, 0))

    assert [len(prompt) for prompt in batch.prompts] == prompts
    assert list(batch.output_lens) == tokens
    assert BY_NAME[name].values((batch,), (2.0,)) == [rate]


def test_divergences_are_those_of_steps_with_as_many_rows_as_a_workload_has():
    assert ROWS == {"decode64_bs1": 1, "decode64_bs8": 8, "prefill256": 256}
    assert set(ROWS) == set(BY_NAME)


def test_every_workload_fits_what_llama_cpp_is_given():
    for workload in WORKLOADS:
        (batch,) = workload.batches(Prompts(VOCAB, 0))
        assert batch.context <= CONTEXT
        assert len(batch.prompts) <= MAX_REQUESTS
        assert len(set(batch.output_lens)) == 1


def test_a_ratio_is_the_median_of_neighbouring_runs_and_more_is_better():
    ours = Side(OURS, "int8 g32", never, never)
    theirs = Side(LLAMA, "Q8_0", never, never, "AVX2 FMA")
    values = {ours.name: [30.0, 20.0, 90.0], theirs.name: [10.0, 20.0, 45.0]}
    lost = {ours.name: 1e-4, theirs.name: 2e-4}

    ours, theirs, ratio = records_of(
        BY_NAME["decode64_bs1"], Turns(values, left_out=2), [ours], [theirs], lost
    )

    assert (ours["format"], ours["median"], ours["unit"]) == ("int8 g32", 30.0, "tok/s")
    assert (theirs["format"], theirs["median"]) == ("Q8_0", 20.0)
    assert (ratio["program"], ratio["format"]) == ("spaninfer / llama.cpp", "int8 g32 / Q8_0")
    assert (ratio["unit"], ratio["runs"], ratio["median"]) == ("times", [3.0, 1.0, 2.0], 2.0)
    assert is_rate(ratio)
    assert (ours["kl"], theirs["kl"]) == (1e-4, 2e-4)
    assert (ratio["kl"], ratio["kl_peer"]) == (1e-4, 2e-4)
    assert [record["left_out"] for record in (ours, theirs, ratio)] == [2, 2, 2]
    assert "peer_instructions" not in ours
    assert theirs["peer_instructions"] == ratio["peer_instructions"] == "AVX2 FMA"


def test_each_of_our_settings_is_set_beside_each_peer():
    ours = [
        Side(OURS, format, never, never) for format in ("bfloat16", "bfloat16, activations too")
    ]
    theirs = [Side(LLAMA, "BF16", never, never), Side("torch eager", "bfloat16", never, never)]
    values = {side.name: [2.0**place] for place, side in enumerate((*ours, *theirs))}

    records = list(
        records_of(
            *(BY_NAME["prefill256"], Turns(values, left_out=0), ours, theirs),
            dict.fromkeys(values, 0.0),
        )
    )

    assert [(record["format"], record["median"]) for record in records[4:]] == [
        ("bfloat16 / BF16", 0.25),
        ("bfloat16 / bfloat16", 0.125),
        ("bfloat16, activations too / BF16", 0.5),
        ("bfloat16, activations too / bfloat16", 0.25),
    ]


def never(*_):
    raise AssertionError("nothing is timed here")
