"""Programs compared with the engine, and peers that are not installed."""

import sys
from importlib.util import find_spec

import pytest
from spaninfer.bench.cpu.engine import measure_engine
from spaninfer.bench.cpu.formats import FORMATS, OURS, TORCH, settings_of
from spaninfer.bench.cpu.sides import LLAMA, PEERS, installed
from spaninfer.bench.cpu.workloads import WORKLOADS
from spaninfer_engine import ConfigError
from spaninfer_kernels_cpu import Format

INT8, BF16 = ({format: FORMATS[format]} for format in (Format("int8", 32), Format("bfloat16")))


def test_a_peer_that_is_missing_is_noted_and_refused_where_it_was_asked_for(monkeypatch):
    for module, _ in PEERS.values():
        monkeypatch.setitem(sys.modules, module, None)
    notes = []

    assert installed(None, notes.append) == ()
    assert [note.split()[0] for note in notes] == list(PEERS)
    with pytest.raises(
        ConfigError, match=r"llama.cpp is not installed: pip install llama-cpp-python"
    ):
        installed({LLAMA}, notes.append)


@pytest.mark.usefixtures("short_texts", "whole_cores")
def test_without_peers_the_engine_is_timed_alone(folder):
    (record,) = measure_engine(folder, INT8, {"prefill256"}, 2, lambda _: None)

    assert (record["workload"], record["format"]) == ("prefill256", "int8 g32")
    assert (record["program"], record["model"]) == (OURS, "tiny")
    assert len(record["runs"]) == 2
    assert 0 < record["kl"] < 1e-2
    assert record["kl_model"] == "demo"


@pytest.mark.skipif(find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
@pytest.mark.usefixtures("short_texts", "whole_cores")
def test_with_llama_cpp_every_workload_has_both_rates_their_ratio_and_both_divergences(folder):
    names = {workload.name for workload in WORKLOADS}

    records = list(measure_engine(folder, INT8, names, 1, lambda _: None, PEERS))

    programs = [OURS, LLAMA, f"{OURS} / {LLAMA}"]
    assert [record["program"] for record in records] == programs * 3
    assert [record["unit"] for record in records] == ["tok/s", "tok/s", "times"] * 3
    for ours, theirs, ratio in zip(*[iter(records)] * 3, strict=True):
        assert theirs["peer_instructions"]
        assert (ratio["kl"], ratio["kl_peer"]) == (ours["kl"], theirs["kl"])


@pytest.mark.usefixtures("short_texts", "whole_cores")
def test_torch_is_set_beside_all_our_settings_of_bfloat16(folder):
    pytest.importorskip("torch")
    settings = settings_of(Format("bfloat16"))

    *rates, torch, first = list(
        measure_engine(folder, BF16, {"prefill256"}, 1, lambda _: None, ["torch"])
    )[: len(settings) + 2]

    assert [record["format"] for record in rates] == [setting.format for setting in settings]
    assert (torch["program"], torch["format"]) == (TORCH.program, "bfloat16")
    assert torch["peer_instructions"]
    assert (first["program"], first["format"]) == (
        "spaninfer / torch eager",
        "bfloat16 / bfloat16",
    )
    assert rates[0]["kl"] < torch["kl"] == first["kl_peer"]
