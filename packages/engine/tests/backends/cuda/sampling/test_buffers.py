"""Sampling parameters as the kernel reads them, without a GPU."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from spaninfer_engine.backends.cuda.sampling.buffers import _TokenMasks, packed
from spaninfer_engine.request.request import MAX_COUNT, SamplingParams
from spaninfer_engine.step.plan import NewSequence
from spaninfer_engine.step.sampling import DeviceSamplingParams

PLAIN = dict(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, seed=2**63 + 5, prompt_len=3)


def test_a_record_says_what_the_parameters_say():
    params = DeviceSamplingParams(**PLAIN, repetition_penalty=1.5, no_repeat_ngram=2)

    [record], lists = packed(params, first=0)

    asked = {name: record[name].item() for name in ("top_k", "seed", "prompt_len", "ngram")}
    assert asked == {"top_k": 7, "seed": 2**63 + 5, "prompt_len": 3, "ngram": 2}
    assert record["repetition"] == np.float32(1.5)
    assert (record["bias_count"], record["word_count"], record["end_count"]) == (0, 0, 0)
    assert len(lists) == 0


@pytest.mark.parametrize("name", ["top_k", "min_tokens", "no_repeat_ngram"])
def test_the_largest_numbers_that_a_request_may_name_fit_into_a_record(name):
    most = SamplingParams(**{name: MAX_COUNT})

    [record], _ = packed(
        DeviceSamplingParams.of(NewSequence(0, (1,) * 1000, most, seed=1)), first=0
    )

    place, offset = {
        "top_k": ("top_k", 0), "min_tokens": ("end_until", 1000), "no_repeat_ngram": ("ngram", 0)
    }[name]  # fmt: skip
    assert record[place] == MAX_COUNT + offset


@pytest.mark.parametrize("bad_words", [(), ((5,),), ((5, 6), (9,), (1, 2, 3))])
@pytest.mark.parametrize("end_ids", [(), (40, 41)])
def test_lists_are_found_where_the_record_says(bad_words, end_ids):
    params = DeviceSamplingParams(
        **PLAIN,
        bias_ids=(8, 4),
        biases=(1.0, -1.0),
        bad_words=bad_words,
        end_ids=end_ids,
        end_until=9,
    )
    memory = np.full(200, -7, np.int32)

    [record], lists = packed(params, first=100)
    memory[100 : 100 + len(lists)] = lists

    def found(name):
        return memory[record[f"{name}_first"] :][: record[f"{name}_count"]].tolist()

    begins = memory[record["word_first"] :]
    words = [tuple(memory[begins[i] : begins[i + 1]].tolist()) for i in range(record["word_count"])]
    assert (found("bias"), found("end"), words) == ([8, 4], list(end_ids), list(bad_words))
    assert record["end_until"] == 9
    assert len(lists) == params.num_listed


@pytest.mark.gpu
def test_masks_arrive_in_their_rows_whichever_of_them_never_change():
    rng, (num_rows, vocab, num_logits) = np.random.default_rng(0), (9, 70, 63)
    masks = _TokenMasks(num_rows, vocab, num_logits, torch.device("cuda"))
    fixed = rng.integers(0, 256, (3, 12), np.uint8)
    fixed.setflags(write=False)
    constant = list(fixed)
    expected = {}
    for _ in range(200):
        rows = rng.permutation(num_rows)[: rng.integers(1, num_rows + 1)].tolist()
        bits = masks.bits(len(rows))
        bits[:] = rng.integers(0, 256, bits.shape)
        chosen = {
            place: constant[rng.integers(3)] for place in range(len(rows)) if rng.random() < 0.5
        }
        expected |= {
            row: chosen.get(place, bits[place])[:8].copy() for place, row in enumerate(rows)
        }
        masks.send(rows, chosen)
        found = masks.of_rows.cpu().numpy().view(np.uint8)
        for row, mask in expected.items():
            np.testing.assert_array_equal(found[row], mask)
