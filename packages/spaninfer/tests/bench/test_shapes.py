import json

import pytest
from spaninfer.bench.shapes import SHAPES, folder_of, write_tokenizer
from spaninfer_engine import Engine, EngineConfig, SamplingParams
from spaninfer_engine.output.handle import complete
from spaninfer_engine.startup.build import build

BUNDLED = 4100
"""Tokens of the bundled model."""


@pytest.fixture
def spoken(tmp_path):
    """A model with random weights whose vocabulary exceeds the bundled tokenizer's."""
    config = {
        **SHAPES["qwen2.5-0.5b"],
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "intermediate_size": 64,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "vocab_size": 6000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_tokenizer(tmp_path, 6000)
    asked = EngineConfig(model=str(tmp_path), weights="dummy", backend="reference", max_len=64)
    with Engine(build(asked)) as engine:
        yield engine


def test_every_token_of_a_shape_has_a_text_of_its_own(spoken):
    tokenizer = spoken.tokenizer

    assert tokenizer.vocab_size == 6000
    texts = [tokenizer.token_bytes(token) for token in range(6000)]
    assert len(set(texts)) == 6000
    assert all(text.startswith(b" ") and len(text) == 5 for text in texts[BUNDLED:])


def test_a_stop_string_ends_an_answer_of_random_weights(spoken):
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    handle, _ = spoken.start_request(tuple(range(5, 25)), params)
    (whole,) = complete(handle)
    stop = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, stop=whole.text[:3])

    handle, _ = spoken.start_request(tuple(range(5, 25)), stop)
    (stopped,) = complete(handle)

    assert whole.text
    assert stopped.text == ""
    assert stopped.matched == whole.text[:3]


def test_a_shape_has_a_config_and_no_weights():
    with folder_of("qwen2.5-7b") as folder:
        assert [file.name for file in folder.iterdir()] == ["config.json"]
