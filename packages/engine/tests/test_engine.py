import gc
import threading
from copy import deepcopy
from dataclasses import fields, replace

import numpy as np
import pytest
from assembled import (
    END,
    VOCAB,
    Letters,
    answer,
    engine,
    parts,
    text_of,
    wait_for_other_engines,
    wait_until,
)
from checking import BlockedRunner, CheckingRunner
from spaninfer_engine.engine import Engine
from spaninfer_engine.errors import (
    EngineClosed,
    InvalidPrompt,
    InvalidSampling,
    PromptTooLong,
    RequestError,
)
from spaninfer_engine.output.handle import complete
from spaninfer_engine.request.request import FinishReason, Placement, SamplingParams, Status
from spaninfer_engine.text.tokenizer import Tokenizer


def test_a_prompt_is_answered_with_the_tokens_and_text_of_the_model():
    with engine() as running:
        completion = running.generate("abc", SamplingParams(max_tokens=12, seed=5))

    expected = answer([0, 1, 2], 5, 12)
    assert completion.token_ids == tuple(expected)
    assert completion.text == text_of(expected)
    assert completion.prompt_ids == (0, 1, 2)
    assert completion.usage.output_len == len(expected)


def test_a_list_of_prompts_gives_all_choices_in_order():
    sampling = SamplingParams(max_tokens=9, seed=3, n=2)

    with engine() as running:
        completions = running.generate(["abc", [4, 5]], sampling)

    assert [(item.prompt_ids, item.index) for item in completions] == [
        ((0, 1, 2), 0),
        ((0, 1, 2), 1),
        ((4, 5), 0),
        ((4, 5), 1),
    ]
    for item in completions:
        assert item.seed == 3 + item.index
        assert list(item.token_ids) == answer(item.prompt_ids, item.seed, 9)


def test_prompts_of_a_list_may_be_answered_each_in_its_own_way():
    samplings = [SamplingParams(max_tokens=n, seed=7, ignore_eos=True) for n in (2, 9, 5, 9)]

    with engine(max_running=1) as running:
        completions = running.generate([[1], [2], [3], [4]], samplings)

    assert [len(item.token_ids) for item in completions] == [2, 9, 5, 9]
    begun = sorted(completions, key=lambda item: item.usage.scheduled_s)
    assert [item.prompt_ids for item in begun] == [(2,), (4,), (3,), (1,)]  # the longest first


def test_samplings_and_prompts_must_be_as_many():
    both = [SamplingParams(), SamplingParams()]

    with engine() as running:
        with pytest.raises(InvalidSampling, match="one for all of 3 prompts, or one for each"):
            running.generate([[1], [2], [3]], both)
        with pytest.raises(InvalidSampling, match="one for a single prompt"):
            running.generate("abc", both)
        with pytest.raises(InvalidSampling, match=r"a list of 0.*one for all of 2 prompts"):
            running.generate([[1], [2]], [])


def test_more_prompts_than_the_queue_holds_are_all_answered():
    prompts = [[i % 50, i // 50] for i in range(60)]

    with engine(max_waiting=3, max_running=2) as running:
        completions = running.generate(prompts, SamplingParams(max_tokens=3, seed=1))

    assert [item.prompt_ids for item in completions] == [tuple(prompt) for prompt in prompts]


def test_a_list_that_waits_for_places_in_the_queue_is_read_once():
    asked = []

    class Counting(Letters):
        def encode(self, text: str, *, at_start: bool) -> list[int]:
            asked.append(text)
            return super().encode(text, at_start=at_start)

    given = parts(max_waiting=3, max_running=2)
    with Engine(replace(given, tokenizer=Tokenizer(Counting(), ()))) as running:
        running.generate(["abc"] * 40, SamplingParams(max_tokens=3))

    assert asked == ["abc"] * 40


def test_a_list_of_prompts_takes_its_turn_behind_requests_of_others():
    runner = BlockedRunner(4, (100,), vocab=VOCAB)
    with engine(runner, max_running=1, max_waiting=1) as running:
        running.start_request([1])
        runner.wait_for_step()
        running.start_request([2])
        threading.Timer(0.02, runner.go).start()

        assert running.generate([3], SamplingParams(max_tokens=1, seed=1)).token_ids


def test_a_request_is_read_piece_by_piece_and_then_gives_none():
    with engine() as running:
        handle, queue = running.start_request([1, 2], SamplingParams(max_tokens=15, seed=2))
        outputs = list(queue)

        assert queue.get() is None
        assert queue.get_nowait() is None
        assert handle.status is Status.FINISHED
    expected = answer([1, 2], 2, 15)
    assert [token for output in outputs for token in output.token_ids] == expected
    assert "".join(output.text for output in outputs) == text_of(expected)
    assert [output.finish_reason is None for output in outputs][:-1] == [True] * (len(outputs) - 1)
    assert outputs[-1].usage.prompt_len == 2


def test_an_end_id_is_a_token_of_the_answer_but_not_of_its_text():
    seed = next(seed for seed in range(500) if answer([1, 2], seed, 30)[-1] == END)

    with engine() as running:
        completion = running.generate([1, 2], SamplingParams(max_tokens=30, seed=seed))

    assert completion.finish_reason is FinishReason.STOP
    assert completion.matched == END
    assert completion.token_ids[-1] == END
    assert "h" not in completion.text


def test_a_stop_id_ends_the_answer_and_its_text_is_left_out_unless_asked_for():
    expected = answer([1, 2], 4, 10)
    stop = expected[4]
    first = expected.index(stop)

    with engine() as running:
        hidden = running.generate([1, 2], SamplingParams(max_tokens=10, seed=4, stop_ids=(stop,)))
        shown = running.generate(
            [1, 2], SamplingParams(max_tokens=10, seed=4, stop_ids=(stop,), include_stop=True)
        )

    assert hidden.token_ids == shown.token_ids == tuple(expected[: first + 1])
    assert hidden.text == text_of(expected[:first])
    assert shown.text == text_of(expected[: first + 1])
    assert hidden.matched == stop


def test_a_stop_string_ends_the_answer_and_only_tokens_up_to_it_count():
    expected = answer([1, 2], 4, 40)
    text = text_of(expected)
    stop = text[5:8]
    end = text.index(stop)
    runner = BlockedRunner(4, (100,), vocab=VOCAB, held=end + 6)  # until the string was noticed

    with engine(runner) as running:
        completion = running.generate([1, 2], SamplingParams(max_tokens=40, seed=4, stop=(stop,)))
        runner.go()

        wait_until(lambda: running.stats().finished[FinishReason.STOP] == 1)
        assert completion.text == text[:end]
        assert completion.finish_reason is FinishReason.STOP
        assert completion.matched == stop
        assert completion.usage.output_len == len(completion.token_ids) == end + 3


def test_text_held_back_for_a_stop_string_comes_with_the_end():
    expected = answer([1, 2], 4, 8)
    text = text_of(expected)

    with engine() as running:
        completion = running.generate(
            [1, 2], SamplingParams(max_tokens=8, seed=4, stop=(text[-2:] + "?",))
        )

    assert completion.text == text
    assert completion.finish_reason is FinishReason.LENGTH


def test_a_stop_string_before_min_tokens_is_passed_over():
    expected = answer([1, 2], 4, 12, min_tokens=6)
    text = text_of(expected)

    with engine() as running:
        completion = running.generate(
            [1, 2], SamplingParams(max_tokens=12, min_tokens=6, seed=4, stop=(text[0:2],))
        )

    assert completion.text == text


def test_an_ended_context_is_a_length():
    with engine(max_len=20) as running:
        completion = running.generate([1, 2], SamplingParams(seed=4, ignore_eos=True))

    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.usage.output_len == 18


def test_a_seed_that_was_not_given_is_reported_and_gives_the_same_again():
    with engine() as running:
        first = running.generate([1, 2], SamplingParams(max_tokens=10))
        other = running.generate([1, 2], SamplingParams(max_tokens=10))
        again = running.generate([1, 2], SamplingParams(max_tokens=10, seed=first.seed))

    assert first.seed != other.seed
    assert first.token_ids == again.token_ids


def test_prompt_logprobs_come_once_and_hold_for_every_choice():
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]

    with engine() as running:
        running.generate(prompt)  # would be a prefix hit
        completions = running.generate(
            [prompt], SamplingParams(max_tokens=3, n=2, prompt_logprobs=0, logprobs=0)
        )

    for completion in completions:
        assert [item.token_id for item in completion.prompt_logprobs] == prompt[1:]
        assert [item.token_id for item in completion.logprobs] == list(completion.token_ids)


def test_a_second_request_finds_the_prefix_of_the_first_and_its_answer():
    with engine() as running:
        first = running.generate([1, 2, 3], SamplingParams(max_tokens=20, ignore_eos=True))
        turn = [*first.prompt_ids, *first.token_ids, 5]
        second = running.generate(turn, SamplingParams(max_tokens=2))

    assert second.usage.cached_len == 20  # whole spans of the 22 positions that have keys


def test_tenants_do_not_share_prefixes():
    prompt = list(range(20))

    with engine() as running:
        mine = running.start_request(prompt, placement=Placement(tenant="a"))[0]
        running.sync(mine)
        _, queue = running.start_request(prompt, placement=Placement(tenant="b"))

        assert list(queue)[-1].usage.cached_len == 0


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ([], InvalidPrompt, "empty"),
        ([1, 50], InvalidPrompt, "token id 50; this model knows 0 to 49"),
        ([1, -1], InvalidPrompt, "token id -1"),
        ([1, 2.5], InvalidPrompt, "whole numbers"),
        ([1, 2**63], InvalidPrompt, "whole numbers below"),
        ([1] * 200, PromptTooLong, "200 tokens"),
        (b"abc", InvalidPrompt, "text or a sequence of token ids; this one is bytes"),
        (None, InvalidPrompt, "this one is NoneType"),
        ({1: 2}, InvalidPrompt, "this one is dict"),
    ],
)
def test_a_prompt_at_fault_is_refused_by_name(prompt, error, words):
    with engine() as running:
        with pytest.raises(error, match=words):
            running.start_request(prompt)
        with pytest.raises(error, match=words):
            running.generate([prompt])
        assert running.generate([1, 2]).token_ids


@pytest.mark.parametrize(
    "prompts", [b"abc", None, iter(["abc"]), {"a": 1}], ids=["bytes", "None", "iterator", "dict"]
)
def test_what_is_neither_a_prompt_nor_a_list_of_them_is_refused(prompts):
    with engine() as running, pytest.raises(InvalidPrompt, match="text or a sequence of"):
        running.generate(prompts)


def as_arrays(kind):
    """Return what makes arrays, or tensors, of ids."""
    return np.array if kind == "numpy" else pytest.importorskip("torch").tensor


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_rows_of_ids_are_prompts(kind):
    array, greedy = as_arrays(kind), SamplingParams(max_tokens=5, seed=3)
    rows = [[1, 2], [3, 4]]
    with engine() as running:
        expected = [answer.token_ids for answer in running.generate(rows, greedy)]

        def told(prompts):
            return [answer.token_ids for answer in running.generate(prompts, greedy)]

        assert told(array(rows)) == told([array(row) for row in rows]) == expected
        assert told([array([1])]) == told([[1]])
        assert told(array([[1], [2]])) == told([[1], [2]])
        assert running.generate(array(rows[0]), greedy).token_ids == expected[0]
        (started,) = complete(running.start_request(array(rows[0]), greedy)[0])
    assert started.token_ids == expected[0]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_arrays_that_are_no_prompt_are_refused(kind):
    array = as_arrays(kind)
    with engine() as running:
        for table in (array([[1, 2]]), array([[1.5, 2.5]])):
            with pytest.raises(InvalidPrompt, match=r"an array with 2 axes; pass one row"):
                running.start_request(table)
        with pytest.raises(InvalidPrompt, match="an array with 2 axes"):
            running.generate(array([[[1, 2]]]))
        for ids in ([array([1, 2])], array([1.5, 2.5])):
            with pytest.raises(InvalidPrompt, match="whole numbers below"):
                running.start_request(ids)
        with pytest.raises(InvalidPrompt, match="text or a sequence of token ids"):
            running.generate(array(5))


def test_sampling_that_names_unknown_tokens_or_adapters_is_refused():
    with engine() as running:
        with pytest.raises(InvalidSampling, match="stop_ids is 50"):
            running.start_request([1], SamplingParams(stop_ids=(50,)))
        with pytest.raises(InvalidSampling, match="logit_bias is 99"):
            running.start_request([1], SamplingParams(logit_bias={99: 1.0}))
        with pytest.raises(RequestError, match="no adapter is called 'fables'"):
            running.start_request([1], placement=Placement(adapter="fables"))


def test_what_becomes_of_a_mapping_after_it_was_given_does_not_reach_the_request():
    biases = {3: 1.0}
    sampling = SamplingParams(logit_bias=biases)

    biases[10**30] = 1.0

    assert sampling == SamplingParams(logit_bias={3: 1.0})
    with pytest.raises(InvalidSampling, match=r"logit_bias is \[1\]; allowed is a mapping"):
        SamplingParams(logit_bias=[1])


@pytest.mark.parametrize(
    "name", [each.name for each in fields(SamplingParams) if each.type == "bool"]
)
@pytest.mark.parametrize("value", ["no", "false", 0, None])
def test_a_boolean_of_sampling_that_is_none_is_refused(name, value):
    with pytest.raises(InvalidSampling, match=f"{name} is {value!r}; allowed is True or False"):
        SamplingParams(**{name: value})


@pytest.mark.filterwarnings("error")
def test_numbers_of_numpy_are_numbers_and_stored_as_python_s():
    given = SamplingParams(
        temperature=np.float32(0.5),
        top_k=np.int64(5),
        seed=np.uint64(2**64 - 1),
        stop_ids=[np.int32(3)],
        keep_special=np.int16(4),
        logit_bias={np.int64(7): np.float16(1.5)},
        ignore_eos=np.True_,
    )

    assert given == SamplingParams(
        temperature=0.5,
        top_k=5,
        seed=2**64 - 1,
        stop_ids=(3,),
        keep_special=(4,),
        logit_bias={7: 1.5},
        ignore_eos=True,
    )
    assert "np." not in repr(given)


def test_numbers_of_numpy_out_of_range_are_refused_as_python_s():
    with pytest.raises(
        InvalidSampling, match=r"temperature is .*3.*; allowed is 0 \(greedy\) to 2"
    ):
        SamplingParams(temperature=np.float32(3))
    with pytest.raises(InvalidSampling, match=r"top_p is .*nan.*; allowed is above 0, to 1"):
        SamplingParams(top_p=np.float64("nan"))
    with pytest.raises(InvalidSampling, match=r"top_p is .*0\.0.*; allowed is above 0, to 1"):
        SamplingParams(top_p=np.float32(0))
    with pytest.raises(InvalidSampling, match=r"top_k is .*5.*; allowed is a whole number from 0"):
        SamplingParams(top_k=np.float64(5))


def test_sampling_can_be_copied_with_all_it_holds():
    sampling = SamplingParams(logit_bias={3: 1.0}, stop=("a",))

    assert deepcopy(sampling) == sampling


@pytest.mark.parametrize("penalty", [0.0, 5e-324, 0.0099, 10.1, float("nan")])
def test_a_penalty_that_makes_logits_infinite_is_refused(penalty):
    with pytest.raises(InvalidSampling, match=r"repetition_penalty is .*; allowed is 0\.01 to 10"):
        SamplingParams(repetition_penalty=penalty)


@pytest.mark.parametrize("name", ["top_k", "min_tokens", "no_repeat_ngram"])
def test_numbers_that_no_sampler_can_count_to_are_refused_before_they_reach_one(name):
    with pytest.raises(InvalidSampling, match=f"{name} is .*; allowed is a whole number from 0 to"):
        SamplingParams(**{name: 2**31})


def test_bad_words_are_banned_as_far_as_the_model_knows_their_tokens():
    class Spaceless(Letters):
        def encode(self, text: str, *, at_start: bool) -> list[int]:
            return super().encode(text.strip(), at_start=at_start)

    given = replace(parts(), tokenizer=Tokenizer(Spaceless(), ()))
    assert VOCAB == 50, "so that Z, the 52nd letter, is a token that the model does not have"

    with Engine(given) as running:
        sampling = SamplingParams(bad_words=("ab", "aZ", " "))
        handle, _ = running.start_request([1], sampling)

    assert handle.request.banned == ((0, 1),)


def test_bad_words_of_many_prompts_become_tokens_once():
    asked = []

    class Counting(Letters):
        def encode(self, text: str, *, at_start: bool) -> list[int]:
            asked.append(text.strip())
            return super().encode(text.strip(), at_start=at_start)

    with Engine(replace(parts(), tokenizer=Tokenizer(Counting(), ()))) as running:
        running.generate([[1], [2], [3]], SamplingParams(max_tokens=1, bad_words=("ab",)))

    assert asked == ["ab", "ab"], "at the beginning of a text, and inside"


@pytest.mark.parametrize(
    ("name", "value"),
    [("priority", "high"), ("priority", None), ("priority", 1.5), ("priority", True)]
    + [("priority", value) for value in (101, -101)]
    + [("deadline_s", value) for value in (-1.0, float("nan"), float("inf"), "soon")],
)
def test_a_placement_that_cannot_be_put_in_order_is_refused(name, value):
    with pytest.raises(RequestError, match=f"{name} is {value!r}; allowed"):
        Placement(**{name: value})


@pytest.mark.parametrize("name", ["tenant", "client", "adapter"])
def test_a_name_in_a_placement_that_is_no_string_is_refused(name):
    with pytest.raises(RequestError, match=f"{name} is 5; allowed is a string"):
        Placement(**{name: 5})


@pytest.mark.filterwarnings("error")
def test_numbers_of_numpy_place_a_request_as_python_s():
    given = Placement(priority=np.int64(-3), deadline_s=np.float32(1.5))

    assert given == Placement(priority=-3, deadline_s=1.5)
    assert "np." not in repr(given)


def test_a_deadline_that_is_no_time_is_refused():
    with pytest.raises(RequestError, match=r"deadline_s is 10+\.\.\.0+; allowed are None, and 0"):
        Placement(deadline_s=10**400)


@pytest.mark.parametrize("name", ["stop", "bad_words"])
@pytest.mark.parametrize("word", ["", "x" * 257])
def test_words_that_would_take_long_to_look_for_are_refused(name, word):
    with pytest.raises(InvalidSampling, match=f"{name} is .*strings of 1 to 256 characters"):
        SamplingParams(**{name: ("fine", word)})

    assert SamplingParams(**{name: ("x" * 256,)})


def test_a_single_prompt_with_several_choices_asks_for_a_list():
    with engine() as running, pytest.raises(InvalidSampling, match=r"or pass \[prompt\]"):
        running.generate("abc", SamplingParams(n=2))


def test_a_chat_is_encoded_through_the_template_and_users_write_no_control_tokens():
    with engine() as running:
        ids = running.encode_chat([{"role": "user", "content": "abc"}])

    assert ids == [0, 1, 2, END]


def test_a_closed_engine_refuses_and_closes_again_without_harm():
    running = engine()
    running.close()
    running.close()

    with pytest.raises(EngineClosed, match="closed"):
        running.start_request([1])


@pytest.mark.parametrize("name", ["wake_up", "freeze", "thaw", "reset_prefix_cache"])
def test_a_closed_engine_does_not_do_as_if_it_did_what_it_is_told(name):
    running = engine()
    running.close()

    with pytest.raises(EngineClosed, match="closed"):
        getattr(running, name)()


def test_an_engine_whose_device_cannot_be_closed_still_gives_the_collector_its_objects_back():
    class Lost(CheckingRunner):
        def close(self):
            raise RuntimeError("the device is lost")

    wait_for_other_engines()
    before = gc.get_threshold()
    running = engine(Lost(4, (100,), vocab=VOCAB))
    assert gc.get_threshold() != before

    with pytest.raises(RuntimeError, match="the device is lost"):
        running.close()
    assert gc.get_threshold() == before


def test_waiting_too_long_for_news_or_for_the_end_is_a_timeout():
    runner = BlockedRunner(4, (100,), vocab=VOCAB)
    with engine(runner) as running:
        handle, queue = running.start_request([1, 2])

        with pytest.raises(TimeoutError):
            queue.get(timeout=0.01)
        with pytest.raises(TimeoutError):
            queue.get_nowait()
        with pytest.raises(TimeoutError, match="has not finished"):
            running.sync(handle, timeout=0.01)
        runner.go()
        running.sync()
        assert handle.status is Status.FINISHED
