"""Fixtures of the CPU benchmark's tests."""

import json
from functools import partial

import pytest
from spaninfer.bench.cpu import divergence, engine
from spaninfer.bench.cpu.turns import Cores
from spaninfer.bench.shapes import SHAPES


@pytest.fixture
def tiny():
    """The config.json of a model of the benchmark's architecture, small."""
    return SHAPES["qwen2.5-0.5b"] | {
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 96,
        "vocab_size": 300,
        "bos_token_id": 1,
        "eos_token_id": 0,
    }


@pytest.fixture
def folder(tmp_path, tiny):
    """A model that is a config.json."""
    home = tmp_path / "tiny"
    home.mkdir()
    (home / "config.json").write_text(json.dumps(tiny))
    return home


@pytest.fixture
def whole_cores(monkeypatch):
    """The cores are always whole; to measure that takes a second per round (`test_turns`)."""
    monkeypatch.setattr(engine, "Cores", partial(Cores, measure=lambda _: 1.0))


@pytest.fixture
def short_texts(monkeypatch):
    """Divergences are measured on three texts of so few tokens."""
    caches = (divergence.texts, divergence._exact, divergence.divergence_of)
    monkeypatch.setattr(divergence, "TOKENS", 24)
    monkeypatch.setattr(divergence, "REQUESTS", divergence.REQUESTS[:3])
    for cached in caches:
        cached.cache_clear()
    yield 24
    for cached in caches:
        cached.cache_clear()
