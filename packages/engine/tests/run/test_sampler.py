import numpy as np
import pytest
from spaninfer_engine.errors import EngineError, NoToken
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.run.logprobs import token_logprobs
from spaninfer_engine.run.sampler import Sampler
from spaninfer_engine.step.plan import NewSequence
from spaninfer_op_reference import RowSampling, log_softmax, process, sample

VOCAB = 50
PROMPT = (3, 7, 3, 9)


def sampler_of(*params, faster=None, logprobs=None, **entry):
    """Return a sampler with requests 0, 1, ... that share a prompt."""
    sampler = Sampler(VOCAB, faster, logprobs)
    for number, each in enumerate(params):
        sampler.enter(NewSequence(number, PROMPT, SamplingParams(**each), seed=number + 1, **entry))
    return sampler


def draw(sampler, logits, requests=None, tokens=PROMPT):
    requests = range(len(logits)) if requests is None else requests
    known = np.array(tokens, np.int32)
    rows = np.asarray(logits, np.float32)
    count = len(rows)
    chosen, places, failed = sampler.sample(
        rows, list(requests), [len(known)] * count, [known] * count
    )
    return chosen, {number: place.entry for number, place in places.items()}, failed


@pytest.fixture
def logits(request):
    seed = len(request.node.name)
    return np.random.default_rng(seed).standard_normal((4, VOCAB)).astype(np.float32) * 3


def test_greedy_requests_take_the_argmax_of_their_row(logits):
    tokens, logprobs, failed = draw(sampler_of(*[{"temperature": 0}] * 4), logits)

    assert tokens == logits.argmax(-1).tolist()
    assert (logprobs, failed) == ({}, {})


def test_a_request_samples_the_same_alone_and_in_any_batch(logits):
    params = [{"temperature": 1.5, "top_p": 0.9}, {}, {"top_k": 5}, {"min_p": 0.1}]
    together, _, _ = draw(sampler_of(*params), logits)

    order = [2, 0, 3, 1]
    mixed, _, _ = draw(sampler_of(*params), logits[order], order)
    alone = [draw(sampler_of(*params), logits[i : i + 1], [i])[0][0] for i in range(4)]

    assert [mixed[order.index(i)] for i in range(4)] == together == alone


def test_samples_at_other_positions_are_other_samples():
    sampler = sampler_of({"temperature": 2.0})
    row = np.zeros((1, VOCAB), np.float32)

    drawn = {draw(sampler, row, tokens=PROMPT + (1,) * n)[0][0] for n in range(30)}

    assert len(drawn) > 10


def test_end_ids_cannot_be_sampled_before_min_tokens():
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 11] = 50
    sampler = sampler_of({"temperature": 0, "min_tokens": 2}, end_ids=(11,))

    early = [draw(sampler, logits, tokens=PROMPT + (1,) * n)[0][0] for n in range(3)]

    assert early[0] != 11
    assert early[1] != 11
    assert early[2] == 11


def test_a_bias_decides():
    tokens, _, _ = draw(
        sampler_of({"temperature": 0, "logit_bias": {8: 100.0}}), np.zeros((1, VOCAB))
    )

    assert tokens == [8]


def test_repetition_counts_the_prompt_and_presence_only_the_output():
    logits = np.zeros((2, VOCAB), np.float32)
    logits[:, 3], logits[:, 5] = 2.0, 1.9
    params = [
        {"temperature": 0, "repetition_penalty": 1.5},
        {"temperature": 0, "presence_penalty": 1.0},
    ]

    before, _, _ = draw(sampler_of(*params), logits)
    after, _, _ = draw(sampler_of(*params), logits, tokens=(*PROMPT, 3))

    assert before == [5, 3]
    assert after == [5, 5]


def test_a_bad_word_of_two_tokens_is_only_banned_behind_its_first():
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 20] = 5
    sampler = sampler_of({"temperature": 0}, banned=((9, 20),))

    assert draw(sampler, logits)[0] != [20]  # the prompt ends in 9
    assert draw(sampler, logits, tokens=(*PROMPT, 1))[0] == [20]


def test_logprobs_are_of_the_models_own_distribution_unless_asked_otherwise(logits):
    params = {"temperature": 0.5, "top_k": 1, "logprobs": 2}
    sampler = sampler_of(params, params | {"processed_logprobs": True})

    tokens, logprobs, _ = draw(sampler, logits[[0, 0]])

    raw = log_softmax(logits[0].astype(np.float64))
    sharp = log_softmax(logits[0].astype(np.float64) / 0.5)
    for entry, expected in zip(logprobs.values(), (raw, sharp), strict=True):
        assert entry.token_id == tokens[0]
        assert entry.logprob == pytest.approx(expected[tokens[0]], abs=1e-5)
        assert [token for token, _ in entry.top] == np.argsort(-expected)[:2].tolist()
        assert entry.rank == 1


def test_processed_logprobs_are_of_what_was_sampled_from(logits):
    asked = [
        {"temperature": 0.5},
        {"temperature": 2.0, "logit_bias": {3: 4.0}},
        {"temperature": 0, "repetition_penalty": 3.0},
    ]
    rows = [
        RowSampling(temperature=0.5),
        RowSampling(temperature=2.0, logit_bias=(np.array([3]), np.array([4.0]))),
        RowSampling(temperature=0, repetition_penalty=3.0, prompt_ids=np.array(PROMPT)),
    ]
    sampler = sampler_of(*({**each, "logprobs": 4, "processed_logprobs": True} for each in asked))

    tokens, logprobs, _ = draw(sampler, logits[[0, 0, 0]])

    for entry, token, row in zip(logprobs.values(), tokens, rows, strict=True):
        expected = log_softmax(process(logits[0].astype(np.float64), row))
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(expected[token], abs=1e-5)
        assert [token for token, _ in entry.top] == np.argsort(-expected)[:4].tolist()


def test_every_request_gets_as_many_likely_tokens_as_it_asked_for(logits):
    params = [{"logprobs": 3}, {"temperature": 0}, {"logprobs": 0}, {"logprobs": 7}]

    _, logprobs, _ = draw(sampler_of(*params), logits)

    assert {number: len(entry.top) for number, entry in logprobs.items()} == {0: 3, 2: 0, 3: 7}
    for number, entry in logprobs.items():
        order = np.argsort(-logits[number]).tolist()
        assert [token for token, _ in entry.top] == order[: len(entry.top)]
        assert entry.rank == 1 + order.index(entry.token_id)


def test_prompt_logprobs_are_about_the_token_that_follows(logits):
    sampler = sampler_of({"prompt_logprobs": 1})
    following = np.array([5, 6, 7, 8], np.int32)

    entries = sampler.prompt_logprobs(0, logits, following)

    expected = log_softmax(logits.astype(np.float64))
    assert [entry.token_id for entry in entries] == [5, 6, 7, 8]
    for row, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(expected[row, following[row]], abs=1e-5)
        assert entry.rank == 1 + int((expected[row] > expected[row, following[row]]).sum())
        assert entry.top[0][0] == expected[row].argmax()


def test_a_row_of_nan_fails_its_request_and_no_other(logits):
    logits[1, 4] = np.nan

    tokens, _, failed = draw(sampler_of(*[{"temperature": 0}, {}, {}, {"temperature": 0}]), logits)

    assert list(failed) == [1]
    assert isinstance(failed[1], NoToken)
    assert isinstance(failed[1], EngineError)
    assert tokens[0] == logits[0].argmax()
    assert tokens[3] == logits[3].argmax()


def sampling_fails_for(*seeds):
    """Return a way to sample that breaks where a row with one of the seeds is among its rows."""

    def sample_or_break(logits, rows):
        if {row.seed for row in rows} & set(seeds):
            raise OverflowError("no such row")
        return sample(logits, rows)

    return sample_or_break


DRAWS = [{"temperature": 0.8}, {"temperature": 0}, {"top_k": 9}, {"temperature": 1.2}]


def test_where_sampling_breaks_by_one_row_the_others_get_their_tokens(logits):
    expected, _, _ = draw(sampler_of(*DRAWS), logits)

    tokens, _, failed = draw(sampler_of(*DRAWS, faster=sampling_fails_for(3)), logits)

    assert list(failed) == [2]
    assert isinstance(failed[2], OverflowError)
    assert tokens[:2] + tokens[3:] == expected[:2] + expected[3:]


def test_where_sampling_breaks_by_every_row_the_sampler_is_at_fault(logits):
    broken = sampler_of(*[{"temperature": 1}] * 4, faster=sampling_fails_for(1, 2, 3, 4))

    with pytest.raises(OverflowError):
        draw(broken, logits)


def test_where_log_probabilities_break_by_one_row_the_others_get_theirs(logits):
    params = [{"logprobs": 2, "seed": number} for number in range(4)]
    odd = logits[1].max()

    def report(about, ids, count, temperatures):
        if odd in about:
            raise OverflowError("no such row")
        return token_logprobs(about, ids, count, temperatures)

    expected = draw(sampler_of(*params), logits.copy())
    tokens, logprobs, failed = draw(sampler_of(*params, logprobs=report), logits)

    assert list(failed) == [1]
    assert tokens == expected[0]
    assert logprobs == {number: expected[1][number] for number in (0, 2, 3)}


def test_a_request_that_left_is_forgotten(logits):
    sampler = sampler_of({"temperature": 0})
    sampler.leave(0)

    with pytest.raises(KeyError):
        draw(sampler, logits[:1])
