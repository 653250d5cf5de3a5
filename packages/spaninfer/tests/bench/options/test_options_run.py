from dataclasses import fields

import pytest
from spaninfer.bench import commands
from spaninfer.bench.options.cases import options_of
from spaninfer.bench.options.run import Batch, Rounds, measure_options, records_of
from spaninfer.bench.options.sides import Ask, Spent, body_of
from spaninfer.bench.soak.client import Target
from spaninfer_engine import InvalidSampling, SamplingParams
from spaninfer_serving.wire.completions import CompletionRequest

BATCH = Batch(requests=25, prompt_len=8, output_len=4)
TOKENS, PLAIN_TOKENS = 25 * 4, 22 * 4


class Recording:
    """A side that takes a second per request that has an option, and ten for all others."""

    def __init__(self):
        self.batches = []

    def spent(self, batch):
        self.batches.append(batch)
        having = sum(ask.has_option for ask in batch)
        return Spent(plain_s=10.0, all_s=10.0 + having, cpu_s=5.0 + having)


def test_a_round_is_plain_requests_then_one_in_ten_then_all_with_the_option():
    side = Recording()

    records = list(measure_options(side, Rounds(BATCH, 4096, 2), {"min_p"}, print))

    shares = [sum(ask.has_option for ask in batch) for batch in side.batches]
    assert shares == [0, 3, 25] + [0, 3, 25] * 2
    assert all(("min_p" in ask.fields) is ask.has_option for b in side.batches for ask in b)
    prompts = [ask.prompt for batch in side.batches for ask in batch]
    assert len(set(prompts)) == len(prompts), "none is found in the prefix cache"
    assert [record["option"] for record in records] == ["min_p", "min_p"]


def test_a_record_compares_each_round_with_its_own_plain_requests():
    slow, fast = Spent(20.0, 20.0, 4.0), Spent(2.0, 2.0, 4.0)
    half = [
        (slow, Spent(25.0, 40.0, 5.0), Spent(0.0, 40.0, 8.0)),
        (fast, Spent(2.5, 4.0, 5.0), Spent(0.0, 4.0, 8.0)),
    ]

    having, beside = records_of("top_k", BATCH, half)

    assert having["runs"] == [TOKENS / 40, TOKENS / 4]
    assert (having["of_plain"], having["cpu_of_plain"]) == (0.5, 2.0)
    assert beside["runs"] == [PLAIN_TOKENS / 25, PLAIN_TOKENS / 2.5]
    assert (beside["requests"], beside["output_len"]) == (25, 4)
    assert (beside["of_plain"], beside["cpu_of_plain"]) == (0.8, 1.25)


def test_an_option_that_is_refused_is_left_out_with_the_reason():
    class Refusing(Recording):
        def spent(self, batch):
            if any("min_p" in ask.fields for ask in batch):
                raise InvalidSampling("min_p", 0.05, "nothing")
            return super().spent(batch)

    notes = []

    records = list(
        measure_options(Refusing(), Rounds(BATCH, 4096, 1), {"min_p", "top_k"}, notes.append)
    )

    assert {record["option"] for record in records} == {"top_k"}
    assert any(note.startswith("min_p: skipped, min_p is 0.05") for note in notes)


@pytest.mark.parametrize("name", options_of(1))
def test_every_option_is_one_that_engine_and_server_take(name):
    asked = options_of(4096)[name]

    assert asked.keys() <= {field.name for field in fields(SamplingParams)}
    SamplingParams(**asked)
    if name != "mask":
        body = body_of(Ask((1, 2), asked, has_option=True))
        CompletionRequest.model_validate_json(_json(body))


def _json(body):
    _, _, data = Target("x", 1).post(body).partition(b"\r\n\r\n")
    return data


@pytest.fixture
def _short_answers(monkeypatch):
    """Answers whose rates nobody looks at."""
    monkeypatch.setattr(commands, "FOR_CPUS", BATCH)


@pytest.mark.slow
@pytest.mark.usefixtures("_short_answers")
def test_options_are_timed_through_a_server(call):
    result = call("bench", "options", "demo", "--http", "--only", "prompt_logprobs", "--runs", "1")

    assert result.exit_code == 0, result.output
    assert result.stdout.count('"through": "http"') == 2


@pytest.mark.usefixtures("_short_answers")
def test_the_engine_is_timed_with_and_without_the_option(call):
    result = call("bench", "options", "demo", "--only", "logprobs,mask", "--runs", "1")

    assert result.exit_code == 0, result.output
    assert result.stdout.count('"option": "logprobs"') == 2
    assert result.stdout.count('"option": "mask"') == 2
    assert '"share": "all"' in result.stdout
