"""The mock model, and a short measurement of its server."""

import pytest
from spaninfer.bench.serve.mock_model import mock_folder
from spaninfer.bench.serve.run import measure_serve
from spaninfer.bench.serve.window import Window, records
from spaninfer.bench.serve.workloads import WORKLOADS, places
from spaninfer_engine import Engine


def test_the_mock_model_answers_with_letters_a_character_per_token():
    with mock_folder() as folder, Engine(folder, backend="reference", memory=1 << 22) as engine:
        answer = engine.generate("The quick", max_tokens=20, ignore_eos=True)
        conversation = engine.chat([{"role": "user", "content": "Hello"}], max_tokens=1)

    assert len(answer.text) == len(answer.token_ids) == 20
    assert answer.text.isalpha()
    assert len(conversation.prompt_ids) == len("user: Hello\nassistant: ")


@pytest.mark.slow
def test_a_server_and_an_engine_are_measured_in_the_same_runs():
    notes = []

    with mock_folder() as folder:
        asked = {"model": str(folder), "max_running": 64}
        found = list(measure_serve(asked, {"short_completions"}, 0.5, 1, notes.append))

    assert notes == ["short_completions: 1 times 0.5 s"]
    runs = {(each.get("through"), each["what"], each["unit"]): each["runs"] for each in found}
    for through in ("http", "engine"):
        assert min(runs[through, "rate", "requests/s"]) > 0
        assert min(runs[through, "CPU", "us/request"]) > 0
    assert min(runs["http", "CPUs of the clients", "CPUs"]) > 0
    assert runs[None, "round of a Python loop", "ns"]


def test_streams_are_counted_by_tokens_and_their_waits_are_told():
    http = Window(2.0, 1.0, 3, 1000, 990, gaps=(0.001, 0.002, 0.2), client_cpu_s=0.5)
    engine = Window(2.0, 1.0, 3, 4000)

    told = {
        (each["what"], each.get("at"), each["unit"]): each["median"]
        for each in records(WORKLOADS["streams_64"], [http])
    }

    assert told == {
        ("rate", None, "tok/s"): 500.0,
        ("CPU", None, "us/token"): 1000.0,
        ("CPUs", None, "CPUs"): 0.5,
        ("CPUs of the clients", None, "CPUs"): 0.25,
        ("events", None, "events/token"): 0.99,
        ("wait for the next token", "p50", "ms"): 2.0,
        ("wait for the next token", "p99", "ms"): 196.04,
        ("wait for the next token", "p100", "ms"): 200.0,
    }
    alone = list(records(WORKLOADS["streams_64"], [engine]))
    assert [(each["what"], each["median"]) for each in alone] == [("rate", 2000.0), ("CPU", 250.0)]


def test_the_engine_s_process_is_counted_apart_where_api_servers_answer():
    window = Window(2.0, 1.0, 3, 1000, 990, gaps=(0.001,), engine_cpu_s=0.25)
    told = {each["what"]: each["median"] for each in records(WORKLOADS["streams_64"], [window])}
    assert told["CPU"] == 1000.0
    assert told["CPU of the engine's process"] == 250.0


@pytest.mark.parametrize(("name", "count"), [("streams_64", 256), ("streams_1000", 1000)])
def test_no_stream_of_a_workload_waits_for_the_end_of_another(name, count):
    assert places({"short_chats", name}) == count
