"""Text shown in the terminal verbatim: brackets are no markup."""

import re
from types import SimpleNamespace

import pytest
from rich.console import Console
from spaninfer import show
from spaninfer_engine.config import Decision
from spaninfer_engine.spec.nodes import CacheGroup
from spaninfer_engine.tools import TensorError
from spaninfer_engine.tools.cpu_tuning import Tuning, TuningRow
from spaninfer_serving import Settings


@pytest.fixture
def said(monkeypatch):
    """What makes a call, and returns what it prints on standard error."""

    def during(call, *arguments, **options):
        console = Console(width=200, color_system=None)
        monkeypatch.setattr(show, "_err", console)
        with console.capture() as printed:
            call(*arguments, **options)
        return printed.get()

    return during


def served(name="tiny", task="generate"):
    """An engine as far as the announcement of its server looks at it."""
    return SimpleNamespace(resolved=SimpleNamespace(name=name), tasks=frozenset({task}))


@pytest.mark.parametrize(
    "sentence",
    [
        "pip install './packages/spaninfer[cuda]'",
        "closed [/bold] and [/]",
        r"C:\[models]\tiny",
        "[red]",
    ],
)
def test_brackets_are_printed_as_they_are(said, sentence):
    decided = SimpleNamespace(
        name=sentence,
        architecture="llama",
        decisions=(Decision("backend", "torch", sentence), Decision("name", sentence, "asked for")),
    )

    assert said(show.failure, sentence) == f"error: {sentence}\n"
    assert said(show.warning, sentence) == f"warning: {sentence}\n"
    assert said(show.note, sentence) == f"{sentence}\n"
    assert said(show.decisions, decided).count(sentence) == 3
    assert sentence in said(show.addresses, "http://127.0.0.1:8000", served(sentence), Settings())


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://[::1]:8000"])
def test_a_server_that_is_ready_says_where_it_is(said, url):
    shown = said(show.addresses, url, served(), Settings())

    assert f"playground  {url}/\n" in shown
    assert f"OpenAI API  {url}/v1   (model: tiny)\n" in shown


@pytest.mark.parametrize(
    ("task", "path"),
    [("generate", "/v1/completions"), ("embed", "/v1/embeddings"), ("classify", "/classify")],
)
def test_what_to_try_is_what_the_model_is_for(said, task, path):
    shown = said(show.addresses, "http://127.0.0.1:8000", served(task=task), Settings())

    assert f"curl http://127.0.0.1:8000{path} " in shown


def test_what_to_try_has_the_key_in_it_where_one_is_needed(said):
    url, decided = "http://127.0.0.1:8000", served()

    with_key = said(show.addresses, url, decided, Settings(api_keys=("k",)))
    assert "Bearer $SPANINFER_API_KEY" in with_key
    assert "Bearer" not in said(show.addresses, url, decided, Settings())
    assert "network" not in with_key


@pytest.mark.parametrize(
    ("keys", "who"), [((), "anyone: no key is required"), (("k",), "who has a key")]
)
def test_a_server_on_all_addresses_says_which_they_are_and_whether_it_is_open(
    said, monkeypatch, keys, who
):
    monkeypatch.setattr(
        "spaninfer.network._own_addresses", lambda: iter(["192.168.1.5", "fd00::5"])
    )
    settings = Settings(host="0.0.0.0", api_keys=keys, no_auth=not keys)

    shown = said(show.addresses, "http://127.0.0.1:8123", served(), settings)

    assert "network     http://192.168.1.5:8123/\n" in shown
    assert f"open to     {who}\n" in shown
    assert "playground  http://127.0.0.1:8123/" in shown


def test_the_error_of_all_weights_counts_each_weight_once(said):
    errors = [
        TensorError("a.weight + [b].weight", (300, 10), 9.0, 0.03, 0.5),
        TensorError("c.weight", (100, 10), 5.0, 0.05, 0.4),
    ]

    line = said(show.packing_errors, errors, every=False)
    table = said(show.packing_errors, errors, every=True)

    assert line == (
        "2 tensors quantised to 8.00 bits per weight; root mean square error 3.606% of the "
        "weights', most in c.weight (5.000%)\n"
    )
    assert re.search(r"a.weight +│ 300 x 10 │ 9.000 │ +3.000% │ +50.000%", table)
    assert "[b].weight" in table
    assert said(show.packing_errors, [], every=True) == ""


def test_times_of_kernels_are_shown_with_what_is_used(monkeypatch):
    console = Console(width=120, color_system=None)
    monkeypatch.setattr(show, "_out", console)
    seconds = {1: 0.001, 64: 0.0105}
    rows = [
        TuningRow("int8", "avx512_vnni", seconds, is_default=True, for_few=False, for_many=True),
        TuningRow("int8", "avx2", seconds, is_default=False, for_few=True, for_many=False),
        TuningRow("int8", "amx", None, is_default=False, for_few=False, for_many=False),
    ]

    with console.capture() as printed:
        show.tuning(Tuning(tuple(rows), {8: seconds, 4: seconds}))

    table = printed.get()
    assert re.search(r"avx512_vnni \(default\) │ 1.000 │ 10.500 │ many ", table)
    assert re.search(r"avx2 +│ 1.000 │ 10.500 │ few tokens ", table)
    assert re.search(r"amx +│ +- │ +- │ +│", table)
    assert (
        "on 8 threads: 1.000, 10.500 ms\nchosen kernels on 4 threads: 1.000, 10.500 ms\n" in table
    )


def test_the_keys_of_indexers_are_told_apart_from_latents(monkeypatch):
    console = Console(width=200, color_system=None)
    monkeypatch.setattr(show, "_out", console)
    latents = CacheGroup(0, (0, 1), 1, 576, 512, values_in_keys=True)
    index = CacheGroup(1, (0,), 1, 128, 128, values_in_keys=True)
    sizes = SimpleNamespace(hidden=64, vocab=100, groups=(latents, index))
    decided = SimpleNamespace(name="tiny", architecture="deepseek_v32", decisions=())

    with console.capture() as printed:
        show.model(SimpleNamespace(model=sizes, weight_bytes=0, towers=(), resolved=decided))

    shown = printed.get()
    assert "1 KV heads of 576 + 512" in shown
    assert "keys of 128 of indexers" in shown


def test_a_pipe_gets_the_names_of_classes_whole(call, monkeypatch):
    monkeypatch.setattr(show, "_out", Console(width=80))

    assert "LlavaOnevisionForConditionalGeneration" in call("spec", "list").stdout
