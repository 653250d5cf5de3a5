import json
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from random_llama import VOCAB, write_model
from safetensors.numpy import load_file, save_file
from spaninfer_engine import Engine, architectures
from spaninfer_engine.backends.rank import Rank
from spaninfer_engine.config import EngineConfig
from spaninfer_engine.errors import CheckpointError, ConfigError
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.startup.assets import UnusableDefaults
from spaninfer_engine.startup.build import build
from spaninfer_engine.startup.model import locate


def test_a_path_is_a_model_named_after_its_folder_or_file(tmp_path):
    folder, file = tmp_path / "Qwen3-0.6B", tmp_path / "model.gguf"
    folder.mkdir()
    file.touch()

    assert locate(str(folder)) == (folder, "Qwen3-0.6B")
    assert locate(file) == (file, "model")


def test_what_is_neither_a_path_nor_brought_is_refused_and_nothing_is_fetched():
    with pytest.raises(
        ConfigError, match=r"an engine downloads nothing.*`hf download org/some-model`"
    ):
        locate("org/some-model")


def test_a_name_that_is_nearly_one_is_answered_with_that(tmp_path, monkeypatch):
    (tmp_path / "hub" / "models--Qwen--Qwen3-0.6B").mkdir(parents=True)
    (tmp_path / "Llama-3").mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    assert refused("dem").endswith("(bundled: demo); did you mean 'demo'?")
    assert "ORG/NAME (the cache has Qwen/Qwen3-0.6B)" in refused("Qwen3-0.6B")
    assert "ORG/NAME (Qwen/Qwen3-0.6B, for example)" in refused("Qwen3-1.7B")
    assert f"the path of a model (there is {tmp_path / 'Llama-3'})" in refused(tmp_path / "Lama-3")
    assert f"({tmp_path / 'none'} is not there either)" in refused(f"{tmp_path}/none/Llama-3")


def refused(model):
    with pytest.raises(ConfigError) as caught:
        locate(model)
    return str(caught.value)


def test_a_model_that_a_package_brings_wins_over_a_folder_of_its_name(tmp_path, monkeypatch):
    class Point:
        name = "bundled"

        def load(self):
            return lambda: tmp_path / "inside-a-package"

    (tmp_path / "bundled").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spaninfer_engine.startup.model.entry_points", lambda **_: [Point()])

    assert locate("bundled") == (tmp_path / "inside-a-package", "bundled")
    assert locate("./bundled")[1] == "bundled"
    assert locate("./bundled")[0].resolve() == tmp_path / "bundled"


def test_one_process_builds_its_runner_and_refuses_to_be_one_of_several(tmp_path):
    write_model(tmp_path / "model", 1, float)
    asked = EngineConfig(model=tmp_path / "model", backend="reference")

    assert build(asked, rank=Rank(0, 1)).resolved == build(asked).resolved
    with pytest.raises(ConfigError, match=r"rank 1 of 2 was requested.* omit rank"):
        build(asked, rank=Rank(1, 2))


@pytest.mark.parametrize("options", [{"backend": "CPU"}, {"device": 5}, {"max_running": True}])
def test_a_value_that_no_machine_takes_is_refused_before_the_model_is_looked_for(options):
    (name,) = options

    with pytest.raises(ConfigError, match=f"{name} is .*; allowed"):
        build(EngineConfig(model="no such model", **options))


def test_a_string_is_a_path_wherever_a_path_is_asked_for(tmp_path):
    write_model(tmp_path / "model", 1, float)
    (tmp_path / "answer.jinja").write_text("{{ messages[0].content }}!")
    paths = {
        "spec": f"{architectures.__path__[0]}/llama.toml",
        "chat_template": str(tmp_path / "answer.jinja"),
        "kv_disk": str(tmp_path / "spans"),
    }
    asked = EngineConfig(model=str(tmp_path / "model"), backend="reference", **paths)

    parts = build(asked)

    assert asked == replace(asked, **{name: Path(path) for name, path in paths.items()})
    assert parts.template.render([{"role": "user", "content": "abc"}]).text == "abc!"
    assert [folder.is_dir() for folder in (tmp_path / "spans").iterdir()] == [True]


@pytest.mark.parametrize("name", ["spec", "chat_template", "kv_disk"])
def test_what_is_no_path_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name} is 5; allowed is a path, or None"):
        EngineConfig(model="demo", **{name: 5})


def test_an_answer_ends_with_ids_that_the_model_knows(tmp_path):
    write_model(tmp_path / "model", 1, float)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["eos_token_id"] = [1, VOCAB, -1]  # as after a tokenizer alone was given new tokens
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))

    parts = build(EngineConfig(model=tmp_path / "model", backend="reference"))

    assert parts.end_ids == {1}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"temperature": 5}, "temperature is 5; allowed is 0 (greedy) to 2"),
        ({"top_k": -7}, "top_k is -7; allowed"),
        ({"top_k": 2.5}, "top_k is 2.5; allowed"),
        ({"top_p": "0.9"}, "top_p is '0.9'; allowed"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; allowed"),
        ({"typical_p": float("nan")}, "typical_p is nan; allowed"),
        ({"temperature": [1], "min_p": True}, "temperature is [1]; allowed"),
    ],
)
def test_sampling_values_out_of_range_are_left_out_with_one_warning(tmp_path, said, told):
    write_model(tmp_path / "model", 1, float)
    file = tmp_path / "model" / "generation_config.json"
    file.write_text(json.dumps({**said, "no_repeat_ngram_size": 3}))

    with pytest.warns(UnusableDefaults) as caught:
        parts = build(EngineConfig(model=tmp_path / "model", backend="reference"))

    assert parts.sampling == SamplingParams(no_repeat_ngram=3)
    assert len(caught) == 1
    assert f"generation_config.json: {told}" in str(caught[0].message)
    assert all(f"{name} is" in str(caught[0].message) for name in said)


def test_a_tokenizer_that_cannot_be_read_is_told_before_weights_and_kernels(tmp_path):
    write_model(tmp_path / "model", 1, float)
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    stages = []

    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokenizer\.json"):
        build(
            EngineConfig(model=tmp_path / "model", backend="reference"),
            lambda stage, *_: stages.append(stage),
        )

    assert stages == []


def test_an_empty_quantization_config_is_none(tmp_path):
    write_model(tmp_path / "model", 1, float)
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": None}))

    parts = build(EngineConfig(model=tmp_path / "model", backend="reference"))

    assert parts.resolved.architecture == "llama"


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", ["int32", "bool", "float8_e4m3fn"])
def test_weights_in_numbers_that_are_not_packed_are_refused_naming_file_and_tensor(
    tmp_path, dtype, backend
):
    folder = tmp_path / "model"
    write_model(folder, 1, np.float32)
    name, file = "model.layers.0.mlp.up_proj.weight", folder / "model.safetensors"
    arrays = load_file(file)
    odd = {name: np.zeros(arrays.pop(name).shape, getattr(ml_dtypes, dtype, dtype))}
    file.rename(folder / "one.safetensors")
    save_file(arrays, folder / "one.safetensors")
    save_file(odd, folder / "two.safetensors")

    with pytest.raises(CheckpointError) as refused:
        build(EngineConfig(model=folder, backend=backend))

    assert f"two.safetensors: tensor {name!r} holds {dtype}; weights are" in str(refused.value)


def test_weights_in_float64_are_read_as_float32(tmp_path):
    answers = []
    for dtype in (np.float32, np.float64):
        folder = tmp_path / np.dtype(dtype).name
        write_model(folder, 1, dtype)
        with Engine(folder, backend="cpu", memory=1 << 26) as engine:
            (answer,) = engine.generate([[1, 2, 3]], SamplingParams(max_tokens=5, temperature=0))
        answers.append(answer.token_ids)

    assert answers[0] == answers[1]
