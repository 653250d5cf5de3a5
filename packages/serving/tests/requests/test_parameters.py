import pytest
from spaninfer_engine import SamplingParams
from spaninfer_engine.errors import InvalidSampling
from spaninfer_serving.error_mapping import problem_of
from spaninfer_serving.requests.parameters import defaults_of, placement_of, prompts_of, sampling_of
from spaninfer_serving.wire.chat import ChatRequest
from spaninfer_serving.wire.completions import CompletionRequest
from spaninfer_serving.wire.errors import Problem

DEFAULTS = SamplingParams(temperature=0.6, top_k=20)


def chat(**body):
    return ChatRequest.model_validate({"messages": [{"role": "user", "content": "x"}], **body})


def completion(prompt="x", **body):
    return CompletionRequest.model_validate({"prompt": prompt, **body})


def test_the_models_defaults_hold_where_the_request_says_nothing():
    assert sampling_of(chat(), DEFAULTS) == DEFAULTS


def test_what_was_asked_before_means_the_same_and_other_defaults_mean_others():
    other = SamplingParams(temperature=0.1)
    for _ in range(2):
        assert sampling_of(chat(top_p=0.9, stop=["a"]), DEFAULTS) == SamplingParams(
            temperature=0.6, top_k=20, top_p=0.9, stop=("a",)
        )
        assert sampling_of(chat(top_p=0.9, stop=["a"]), other).temperature == 0.1
        assert sampling_of(chat(top_p=0.9, stop=["b"]), other).stop == ("b",)
        assert sampling_of(chat(logit_bias={"5": 1}), other).logit_bias == {5: 1}
        with pytest.raises(InvalidSampling):
            sampling_of(chat(top_p=9), DEFAULTS)


def test_every_parameter_arrives_under_our_name():
    body = chat(
        n=2, max_tokens=7, min_tokens=1, temperature=0, top_p=0.9, top_k=5, min_p=0.1,
        typical_p=0.8, presence_penalty=1, frequency_penalty=-1, repetition_penalty=1.2,
        no_repeat_ngram_size=3, seed=11, ignore_eos=True, include_stop_str_in_output=True,
        skip_special_tokens=False, stop=["a", "b"], stop_token_ids=[4], bad_words=["c"],
        logit_bias={"5": -100}, logprobs=True, top_logprobs=3, processed_logprobs=True,
    )  # fmt: skip

    assert sampling_of(body, DEFAULTS) == SamplingParams(
        n=2, max_tokens=7, min_tokens=1, temperature=0, top_p=0.9, top_k=5, min_p=0.1,
        typical_p=0.8, presence_penalty=1, frequency_penalty=-1, repetition_penalty=1.2,
        no_repeat_ngram=3, seed=11, ignore_eos=True, include_stop=True, skip_special=False,
        stop=("a", "b"), stop_ids=(4,), bad_words=("c",), logit_bias={5: -100}, logprobs=3,
        processed_logprobs=True,
    )  # fmt: skip


def test_minus_one_is_the_word_of_others_for_all_tokens():
    assert sampling_of(chat(top_k=-1), DEFAULTS).top_k == 0


def test_best_of_may_be_what_is_returned_anyway():
    assert sampling_of(completion(best_of=1), DEFAULTS).n == 1
    assert sampling_of(completion(n=3, best_of=3), DEFAULTS).n == 3


@pytest.mark.parametrize(("n", "best_of"), [(None, 2), (2, 3), (2, 1), (2, 0)])
def test_best_of_that_would_leave_choices_out_is_refused_by_name(n, best_of):
    with pytest.raises(Problem, match=f"best_of is {best_of}.*must equal n") as caught:
        sampling_of(completion(n=n, best_of=best_of), DEFAULTS)

    assert (caught.value.param, caught.value.code) == ("best_of", "unsupported_parameter")


def test_the_newer_name_of_max_tokens_wins():
    body = chat(max_tokens=5, max_completion_tokens=9)

    assert sampling_of(body, DEFAULTS).max_tokens == 9


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_a_value_out_of_range_is_refused_under_the_name_it_came_with(body, name):
    with pytest.raises((Problem, InvalidSampling), match=f"^{name} is ") as refused:
        sampling_of(chat(**body), DEFAULTS)

    assert problem_of(refused.value, "messages").param == name


@pytest.mark.parametrize(("wire", "ours"), [(-1, 2**64 - 1), (-(2**63), 2**63), (2**63, 2**63)])
def test_a_negative_seed_is_a_seed_of_its_own(wire, ours):
    assert sampling_of(chat(seed=wire), DEFAULTS).seed == ours


def test_no_tokens_at_all_may_be_asked_for_only_with_the_prompt():
    assert sampling_of(completion(max_tokens=0, min_tokens=0, echo=True), DEFAULTS).max_tokens == 1
    for body in (completion(max_tokens=0), chat(max_tokens=0)):
        with pytest.raises(InvalidSampling, match="max_tokens is 0"):
            sampling_of(body, DEFAULTS)


def test_top_logprobs_alone_is_refused():
    with pytest.raises(Problem, match="needs logprobs"):
        sampling_of(chat(top_logprobs=2), DEFAULTS)


def test_echoed_logprobs_of_a_completion_cover_the_prompt():
    assert sampling_of(completion(logprobs=2, echo=True), DEFAULTS).prompt_logprobs == 2
    assert sampling_of(completion(logprobs=2), DEFAULTS).prompt_logprobs is None


def test_a_value_out_of_range_is_refused_by_the_engines_own_check():
    with pytest.raises(InvalidSampling, match=r"top_p is 1\.5"):
        sampling_of(chat(top_p=1.5), DEFAULTS)


def test_a_bias_on_something_that_is_no_token_id_is_refused():
    with pytest.raises(Problem, match="logit_bias maps token ids"):
        sampling_of(chat(logit_bias={"the": 1.0}), DEFAULTS)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_a_prompt_is_text_or_ids_or_a_list_of_either(prompt, expected):
    assert prompts_of(completion(prompt)) == expected


def test_no_prompt_at_all_is_refused():
    with pytest.raises(Problem, match="empty list"):
        prompts_of(completion([]))


def test_requests_share_spans_only_within_a_tenant_and_a_salt():
    tenants = [
        placement_of(chat(cache_salt=salt), "c", tenant, may_prioritise=False).tenant
        for tenant in ("", "a", "b")
        for salt in (None, "s", "a", "b")
    ]

    assert tenants[0] == ""
    assert len(set(tenants)) == len(tenants)


def test_defaults_have_the_names_that_bodies_have():
    defaults = SamplingParams(temperature=0.5, top_k=40, no_repeat_ngram=3, max_tokens=512)

    found = defaults_of(defaults)

    assert found["no_repeat_ngram_size"] == 3
    assert (found["temperature"], found["top_k"], found["max_tokens"]) == (0.5, 40, 512)
    assert found.keys() <= CompletionRequest.model_fields.keys()
    assert sampling_of(CompletionRequest(prompt="x", **found), SamplingParams()) == defaults
