import threading
from dataclasses import fields, replace

import pytest
from entries import sampled
from spaninfer_engine.errors import Unread
from spaninfer_engine.output.handle import ResultQueue, each_token, merge
from spaninfer_engine.request.request import FinishReason, Output, TokenLogprob


def part(index, *tokens, reason=None):
    text = "".join(map(str, tokens))
    return Output(index=index, token_ids=tokens, text=text, finish_reason=reason)


def queue(num_choices=1):
    return ResultQueue(num_choices, lambda: None)


def test_a_slow_reader_gets_everything_of_a_choice_in_one_element():
    results = queue(2)
    for output in (part(0, 1), part(1, 7), part(0, 2), part(0, 3, reason=FinishReason.STOP)):
        results.put(output)

    assert results.get() == part(0, 1, 2, 3, reason=FinishReason.STOP)
    assert results.get() == part(1, 7)
    with pytest.raises(TimeoutError):
        results.get_nowait()


def test_unread_outputs_are_all_there_in_order():
    results = queue(2)
    for token in range(1000):
        results.put(part(token % 2, token))
    results.put(part(0, 1000, reason=FinishReason.LENGTH))

    assert results.get() == part(0, *range(0, 1001, 2), reason=FinishReason.LENGTH)
    assert results.get() == part(1, *range(1, 1000, 2))


def test_an_unread_answer_is_kept_in_few_pieces_however_long_it_is():
    results = queue()
    for token in range(20_000):
        results.put(Output(index=0, token_ids=(token,)))

    assert len(results._pending[0]) <= 20_000 // 64 + 64
    assert results.get().token_ids == tuple(range(20_000))


def test_a_queue_ends_when_all_choices_have():
    results = queue(2)
    results.put(part(0, 1, reason=FinishReason.STOP))
    assert not results.is_finished
    results.put(part(1, 2, reason=FinishReason.STOP))

    assert results.is_finished
    assert [output.index for output in results] == [0, 1]
    assert results.get() is None


def test_a_reader_that_waits_wakes_when_something_comes():
    results = queue()
    threading.Timer(0.02, results.put, [part(0, 1)]).start()

    assert results.get(timeout=120) == part(0, 1)


def test_what_is_discarded_is_not_kept_but_its_end_is_noticed():
    results = queue()
    results.put(part(0, 1))

    results.discard()
    results.put(part(0, 2, reason=FinishReason.STOPPED))

    assert results.get() is None
    assert results.is_finished


@pytest.mark.parametrize(("put_before", "calls_before"), [(False, 0), (True, 1)])
def test_a_listener_is_called_with_what_is_there_and_everything_that_comes(
    put_before, calls_before
):
    calls = []
    results = queue()
    if put_before:
        results.put(part(0, 1))
    results.listen(lambda: calls.append(results.is_finished))
    assert len(calls) == calls_before

    results.put(part(0, 2))
    results.put(part(0, 3, reason=FinishReason.STOP))

    assert calls == [False] * calls_before + [False, True]


@pytest.mark.parametrize(("ended", "called"), [(1, False), (2, True)])
def test_the_listener_of_what_is_read_at_the_end_is_called_when_every_choice_has_finished(
    ended, called
):
    calls = []
    results = queue(2)
    results.read_at_end()
    results.listen(lambda: calls.append(True))

    for index in range(ended):
        results.put(part(index, 1))
        results.put(part(index, 2, reason=FinishReason.STOP))

    assert calls == [True] * called
    assert results.is_due == called


def test_the_listener_of_what_is_read_at_the_end_is_called_when_a_choice_fails():
    calls = []
    results = queue(2)
    results.read_at_end()
    results.listen(lambda: calls.append(True))

    results.put(part(0, 1))
    results.put(part(0, reason=FinishReason.ERROR))

    assert calls == [True]
    assert results.is_due


def test_merging_keeps_what_only_the_last_output_says():
    whole = merge([part(0, 1), part(0, 2), part(0, 3, reason=FinishReason.LENGTH)])

    assert (whole.token_ids, whole.text) == ((1, 2, 3), "123")
    assert whole.finish_reason is FinishReason.LENGTH


def test_merging_loses_no_field():
    given = {field.name: object() for field in fields(Output)}
    added = {name: (name,) for name in ("token_ids", "texts", "prompt_logprobs")}
    added |= {"logprobs": sampled(TokenLogprob(1, -1.0, 1))}
    last = Output(**given | added | {"text": "texts", "texts": ("texts",)})

    whole = merge([Output(index=given["index"]), last])

    assert [getattr(whole, each.name) for each in fields(Output)] == [
        getattr(last, each.name) for each in fields(Output)
    ]


def test_a_limited_queue_drops_what_is_not_read_and_stops_its_request():
    results, stopped = queue(), []
    results.limit(2, lambda: stopped.append(True))
    for token in range(5):
        results.put(part(0, token))
    results.put(part(0, reason=FinishReason.STOPPED))

    assert stopped == [True]
    assert results.is_finished
    for _ in range(2):
        with pytest.raises(Unread, match="more than 2 tokens"):
            results.get()


def test_a_limited_queue_keeps_one_output_however_much_it_holds():
    results = queue()
    results.limit(2, pytest.fail)

    for _ in range(3):
        results.put(part(0, *range(100)))
        assert results.get() == part(0, *range(100))


def test_what_was_merged_comes_apart_token_by_token():
    first = replace(part(0, 5), logprobs=sampled(TokenLogprob(5, -1.0, 1)), prompt_logprobs=(1, 2))
    others = [
        replace(part(0, token), logprobs=sampled(TokenLogprob(token, -2.0, 1))) for token in (6, 7)
    ]
    last = replace(part(0, 8, reason=FinishReason.STOP), logprobs=sampled(TokenLogprob(8, -3.0, 1)))
    singles = [first, *others, replace(last, text="8, and what was held back", matched="x")]

    whole = merge([merge(singles[:2]), merge(singles[2:])])

    assert list(each_token(whole)) == singles
    assert [output.texts for output in each_token(whole)] == [()] * 4


def test_an_end_without_a_token_stands_behind_the_last_token():
    end = Output(index=0, text="held", finish_reason=FinishReason.STOPPED)

    assert list(each_token(merge([part(0, 1), part(0, 2), end]))) == [part(0, 1), part(0, 2), end]
    bare = replace(end, text="")
    assert list(each_token(merge([part(0, 1), part(0, 2), bare])))[-1] == replace(
        part(0, 2), finish_reason=FinishReason.STOPPED
    )
