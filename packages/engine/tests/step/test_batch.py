"""Columns of a step, from the slices of a plan."""

from itertools import accumulate, takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spaninfer_engine.request.request import MAX_LOGPROBS, SamplingParams
from spaninfer_engine.step.batch import Run, build_batch
from spaninfer_engine.step.plan import NewSequence, Slice
from spaninfer_engine.step.sequences import Sequences

DECODES = (Slice(7, 41, 42, 41, True), Slice(8, 5, 6, 5, True))
CHUNK = Slice(9, 0, 30, 30, False)
PROMPT = Slice(10, 4, 9, 8, True)


def batch_of(*slices, on_host=()):
    sequences = Sequences(1, max_len=64, span_len=4, num_rows=8)
    for seq_id in range(7, 11):
        sequences.enter(NewSequence(seq_id, (0,), SamplingParams(), 0))
    return build_batch(slices, sequences, on_host)


def test_decodes_get_logits_and_are_sampled():
    batch = batch_of(*DECODES)

    assert batch.starts.tolist() == [41, 5]
    assert batch.stops.tolist() == [42, 6]
    assert batch.query_start_loc.tolist() == batch.logit_start_loc.tolist() == [0, 1, 2]
    assert batch.samples_on_device.all()
    assert batch.host_logits.tolist() == []
    assert batch.positions().tolist() == [41, 5]
    assert batch.logit_indices().tolist() == [0, 1]
    assert batch.is_decode
    assert batch.max_seq_len == 42


def test_rows_are_those_of_the_sequences():
    first, second = batch_of(*DECODES).table_rows.tolist()

    assert first != second
    assert batch_of(*DECODES[::-1]).table_rows.tolist() == [second, first]


def test_longer_slices_follow_the_decodes_and_are_known_as_runs():
    batch = batch_of(*DECODES, CHUNK, PROMPT)

    assert batch.query_start_loc.tolist() == [0, 1, 2, 32, 37]
    assert batch.logit_start_loc.tolist() == [0, 1, 2, 2, 3]
    assert batch.samples.tolist() == [True, True, False, True]
    assert (batch.num_tokens, batch.num_logits, batch.num_decodes) == (37, 3, 2)
    *_, chunk, prompt = batch.table_rows.tolist()
    assert batch.runs(first=2) == (Run(2, 32, chunk, 0, 30), Run(32, 37, prompt, 4, 9))
    assert batch.runs([5, 6, 7, 8])[3].row == 8
    assert len(batch.runs()) == 4


def test_tokens_follow_the_slices_in_order():
    batch = batch_of(DECODES[1], Slice(7, 1, 4, 4, False))

    assert batch.positions().tolist() == [5, 1, 2, 3]
    assert batch.token_rows().tolist() == np.repeat(batch.table_rows, [1, 3]).tolist()


def test_a_chunk_of_one_token_is_no_decode():
    batch = batch_of(DECODES[0], Slice(9, 3, 4, 4, False))

    assert batch.num_decodes == 2
    assert batch.num_logits == 1
    assert not batch.is_decode


def test_logits_are_computed_from_where_each_slice_says():
    batch = batch_of(Slice(8, 4, 5, 4, True), Slice(7, 1, 4, 4, False), Slice(9, 4, 8, 6, True))

    assert batch.logit_indices().tolist() == [0, 6, 7]


def test_the_host_gets_logits_of_prompts_and_of_what_it_samples():
    batch = batch_of(Slice(7, 0, 5, 1, True), DECODES[1], Slice(9, 0, 3, 0, False), on_host=[7])

    assert batch.logit_start_loc.tolist() == [0, 4, 5, 8]
    assert batch.host_logits.tolist() == [0, 1, 2, 3, 5, 6, 7]
    assert batch.samples_on_device.tolist() == [False, True, False]


def test_a_device_reports_as_many_likely_tokens_as_one_of_the_prompts_asks_for():
    sequences = Sequences(1, max_len=64, span_len=4, num_rows=8)
    for seq_id, asked in ((7, 2), (8, 9), (9, 4), (10, None)):
        sampling = SamplingParams(prompt_logprobs=asked)
        sequences.enter(NewSequence(seq_id, (0,), sampling, 0))
    slices = (Slice(8, 5, 6, 5, True), Slice(7, 0, 5, 1, True), Slice(9, 0, 3, 0, False), PROMPT)

    batch = build_batch(slices, sequences, device_reports=True)

    assert batch.num_reported.tolist() == [0, 3, 3, 0]
    assert batch.most_reported(sequences) == 4
    none = build_batch(slices[:1], sequences, device_reports=True)
    assert none.most_reported(sequences) == 0


def test_a_step_of_unknown_sequences_has_memory_for_all_logprobs():
    batch = batch_of(Slice(7, 0, 5, 1, True), Slice(8, 0, 5, 4, True))

    assert batch.most_reported(Sequences(1, max_len=64, span_len=4, num_rows=8)) == MAX_LOGPROBS


@pytest.mark.parametrize("by_host", [False, True])
def test_the_host_samples_for_the_sequences_it_is_told(by_host):
    batch = batch_of(*DECODES, on_host=[9, *([7] if by_host else [])])

    assert batch.samples_on_device.tolist() == [not by_host, True]
    assert batch.host_logits.tolist() == [0] * by_host


@st.composite
def parts(draw: st.DrawFn, most: int) -> tuple[int, int, int, bool, bool]:
    """First position, tokens, logits, is a token sampled, and does the host sample it?"""
    count = draw(st.integers(1, most))
    logits = draw(st.sampled_from([count, draw(st.integers(0, count))]))
    return (
        draw(st.integers(0, 9)),
        count,
        logits,
        logits > 0 and draw(st.booleans()),
        draw(st.booleans()),
    )


@given(
    st.sampled_from([1, 1, 4]).flatmap(lambda most: st.lists(parts(most), min_size=1, max_size=4)),
    st.booleans(),
    st.booleans(),
)
def test_columns_say_what_the_slices_say_one_by_one(drawn, device_reports, is_masked):
    sequences = Sequences(1, max_len=64, span_len=4, num_rows=8)
    slices, on_host, positions, rows, wanted, host = [], set(), [], [], [], []
    for seq_id, (start, count, num_logits, samples, by_host) in enumerate(drawn, 50):
        sequences.enter(NewSequence(seq_id, (0,), SamplingParams(), 0))
        slices.append(Slice(seq_id, start, start + count, start + count - num_logits, samples))
        on_host |= {seq_id} if by_host else set()
        positions += range(start, start + count)
        rows += [sequences.row(seq_id)] * count
        wanted += range(len(rows) - num_logits, len(rows))
        reported = [] if device_reports else range(len(wanted) - num_logits, len(wanted) - samples)
        host += [*reported, *([len(wanted) - 1] if samples and by_host else [])]
    lengths, logits = [each[1] for each in drawn], [each[2] for each in drawn]

    masked = set(sequences.by_id) - on_host if is_masked else set()

    batch = build_batch(slices, sequences, on_host, masked, device_reports=device_reports)

    assert batch.positions().tolist() == positions
    assert batch.token_rows().tolist() == rows
    assert batch.places(sequences, 3).tolist() == [positions] * 3
    assert batch.logit_indices().tolist() == wanted
    assert batch.host_logits.tolist() == host
    assert batch.query_start_loc.tolist() == list(accumulate(lengths, initial=0))
    assert batch.logit_start_loc.tolist() == list(accumulate(logits, initial=0))
    assert batch.num_decodes == len(list(takewhile(lambda count: count == 1, lengths)))
    assert batch.is_decode == (lengths == logits == [1] * len(drawn))
    assert batch.has_reported == bool(batch.num_reported.any())
    assert batch.num_samples == batch.samples.sum()
    assert batch.num_device_samples == batch.samples_on_device.sum()
    assert batch.num_masked == batch.masked.sum()
    assert (batch.masked == (batch.samples_on_device & is_masked)).all()
    assert {
        each.dtype for each in (batch.positions(), batch.logit_indices(), batch.host_logits)
    } == {np.dtype(np.int32)}
