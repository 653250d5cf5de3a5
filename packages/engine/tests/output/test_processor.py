"""Outputs token by token, and merged while the output thread is busy."""

from threading import Event

from assembled import Letters
from driving import Bench, request
from spaninfer_engine.output.handle import ResultQueue
from spaninfer_engine.output.processor import READ_AT_END, OutputProcessor, RequestStarted
from spaninfer_engine.request.request import FinishReason, SamplingParams
from spaninfer_engine.schedule.sequence import Ended, Events
from spaninfer_engine.text.tokenizer import Tokenizer


def test_what_came_while_the_writer_was_busy_is_one_output_per_choice():
    writer = OutputProcessor(Tokenizer(Letters(), []), lambda *_: None)
    bench = Bench(num_spans=(50,))
    (first,), (other,) = bench.add(request(1, [1])), bench.add(request(2, [2]))
    queues = ResultQueue(1, lambda: None), ResultQueue(1, lambda: None)
    seen, sizes = [], []
    is_held, may_go = Event(), Event()

    def on_output():
        sizes.append(len(queues[0]._pending.get(0, ())))
        if len(sizes) == 1:
            is_held.set()
            assert may_go.wait(120)

    queues[0].listen(on_output)
    for seq, queue in zip((first, other), queues, strict=True):
        writer.put(RequestStarted((seq,), queue))
    writer.put(Events([(first, 0, None), (other, 10, None)], []))
    assert is_held.wait(120)
    for token in (1, 2, 3):
        writer.put(Events([(first, token, None), (other, 10 + token, None)], []))
    end = Ended(first, FinishReason.LENGTH, first.usage(1.0), (first, 4, None))
    writer.put(Events([], [end]))
    may_go.set()
    writer.close()

    while (output := queues[0].get(timeout=0)) is not None:
        seen.append(output)
    assert "".join(output.text for output in seen) == "abcde"
    assert sizes == [1, 1]  # one token; three tokens with the end, merged with the first
    assert queues[1].get(timeout=0).text == "klmn"


def test_what_is_read_at_the_end_is_put_in_few_outputs_and_stop_strings_are_found_at_once():
    stopped = []
    writer = OutputProcessor(Tokenizer(Letters(), []), lambda ids, why: stopped.append((ids, why)))
    bench = Bench(num_spans=(50,))
    prompts = request(1, [1]), request(2, [2], sampling=SamplingParams(stop=("c",)))
    (patient,), (stopping,) = map(bench.add, prompts)
    queues = ResultQueue(1, lambda: None), ResultQueue(1, lambda: None)
    puts = []
    for queue in queues:
        queue.read_at_end()
        queue.put = lambda output, put=queue.put: (puts.append(output), put(output))
    for seq, queue in zip((patient, stopping), queues, strict=True):
        writer.put(RequestStarted((seq,), queue))

    for token in range(4):
        events = [(patient, token, None), (stopping, token, None)]
        writer.put(Events(events, []), here=True)
        writer.write()
    before_the_end = list(puts)
    end = Ended(patient, FinishReason.LENGTH, patient.usage(1.0), (patient, 4, None))
    writer.put(Events([], [end]), here=True)
    writer.write()
    writer.close()

    assert "".join(output.text for output in before_the_end) == "ab"
    assert stopped == [((2,), FinishReason.STOP)]
    assert len(puts) - len(before_the_end) == 1  # what waited, with the end
    assert queues[0].get(timeout=0).text == "abcde"


def test_a_long_answer_that_is_read_at_the_end_does_not_wait_in_one_piece():
    writer = OutputProcessor(Tokenizer(Letters(), []), lambda *_: None)
    (seq,) = Bench(num_spans=(50,)).add(request(1, [1]))
    queue = ResultQueue(1, lambda: None)
    queue.read_at_end()
    writer.put(RequestStarted((seq,), queue))
    found = []
    for number in range(READ_AT_END):
        writer.put(Events([(seq, number % 26, None)], []), here=True)
        writer.write()
        found.append(queue.has_news)
    writer.close()

    assert found == [False] * (READ_AT_END - 1) + [True]


def test_a_long_answer_that_is_read_at_the_end_is_written_though_the_output_thread_is_not_woken():
    writer = OutputProcessor(Tokenizer(Letters(), []), lambda *_: None)
    (seq,) = Bench(num_spans=(50,)).add(request(1, [1]))
    queue, is_written = ResultQueue(1, lambda: None), Event()
    queue.read_at_end()
    queue.put = lambda output, put=queue.put: (put(output), is_written.set())
    writer.put(RequestStarted((seq,), queue))
    for number in range(2 * READ_AT_END):
        writer.put(Events([(seq, number % 26, None)], []))

    assert is_written.wait(120)
    writer.close()


def test_who_reads_token_by_token_waits_for_nobody_who_reads_at_the_end():
    writer = OutputProcessor(Tokenizer(Letters(), []), lambda *_: None)
    bench = Bench(num_spans=(50,))
    patient, eager = (ResultQueue(1, lambda: None) for _ in range(2))
    patient.read_at_end()
    (first,), (second,) = bench.add(request(1, [1])), bench.add(request(2, [2]))
    writer.put(RequestStarted((first,), patient))
    writer.put(Events([(first, 0, None)], []))
    writer.put(RequestStarted((second,), eager))
    said = []
    for token in range(20):
        writer.put(Events([(first, token, None), (second, token, None)], []))
        said.append(eager.get(timeout=120).text)
    writer.close()

    assert "".join(said) == "abcdefghijklmnopqrst"


def test_what_is_to_be_written_now_is_there_at_once_behind_what_came_before():
    writer = OutputProcessor(Tokenizer(Letters(), []), lambda *_: None)
    (seq,) = Bench(num_spans=(50,)).add(request(1, [1]))
    queue = ResultQueue(1, lambda: None)

    writer.put(RequestStarted((seq,), queue))
    for token in range(0, 20, 2):
        writer.put(Events([(seq, token, None)], []))
        writer.put(Events([(seq, token + 1, None)], []), here=True)
        writer.write()

        assert queue.get(timeout=0).text.endswith(chr(ord("a") + token + 1))
    writer.close()


def test_outputs_are_written_until_the_caller_has_something_else_to_do():
    writer = OutputProcessor(Tokenizer(Letters(), []), lambda *_: None)
    bench = Bench(num_spans=(200,))
    seqs = [seq for number in range(40) for seq in bench.add(request(number, [1]))]
    queues = [ResultQueue(1, lambda: None) for _ in seqs]
    for seq, queue in zip(seqs, queues, strict=True):
        writer.put(RequestStarted((seq,), queue), here=True)
    asked = []

    def is_over():
        asked.append(sum(queue.has_news for queue in queues))
        return len(asked) >= 10

    writer.put(Events([(seq, 0, None) for seq in seqs], []), here=True)
    writer.write_until(is_over)

    assert asked[:10] == list(range(1, 11))  # one output at a time
    while not all(queue.has_news for queue in queues):  # what is left comes first
        writer.write_until(lambda: True)
    writer.put(Events([(seq, 1, None) for seq in seqs], []), here=True)
    writer.close()
    assert [queue.get(timeout=0).text for queue in queues] == ["ab"] * 40


def test_nothing_is_written_here_that_is_not_waited_for():
    writer = OutputProcessor(Tokenizer(Letters(), []), lambda *_: None)
    (seq,) = Bench(num_spans=(50,)).add(request(1, [1]))
    queue = ResultQueue(1, lambda: None)
    queue.read_at_end()
    writer.put(RequestStarted((seq,), queue), here=True)

    for token in range(READ_AT_END):
        assert not queue.has_news
        writer.put(Events([(seq, token % 26, None)], []), here=True)
        writer.write_until(lambda: False)

    writer.close()
    assert queue.has_news
