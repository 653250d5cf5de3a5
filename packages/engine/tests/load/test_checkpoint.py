import re

import numpy as np
import pytest
from safetensors.numpy import save_file
from shared_data import shared_data
from spaninfer_engine.errors import CheckpointError, ConfigError
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.vocab import Vocabulary
from vocabularies import write_json


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "tiny-model"
    folder.mkdir()
    write_json(folder / "config.json", {"model_type": "llama", "eos_token_id": 2})
    save_file({"w": np.ones(2, np.float32)}, folder / "model.safetensors")
    return folder


def test_a_folder_gives_config_weights_tokenizer_and_template(folder):
    write_json(folder / "generation_config.json", {"eos_token_id": [2, 7], "temperature": 0.5})
    write_json(folder / "tokenizer.json", {})
    write_json(
        folder / "tokenizer_config.json",
        {"chat_template": "{{ 1 }}", "bos_token": {"content": "<s>"}, "eos_token": "</s>"},
    )

    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.name == "tiny-model"
        assert checkpoint.config["model_type"] == "llama"
        assert checkpoint.end_ids == {2, 7}
        assert checkpoint.sampling_defaults == {"temperature": 0.5}
        assert checkpoint.tokenizer == folder / "tokenizer.json"
        assert checkpoint.chat_template == "{{ 1 }}"
        assert checkpoint.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
        assert checkpoint.reader.read("w").tolist() == [1, 1]


def test_a_template_file_wins_over_the_config_and_a_list_becomes_names(folder):
    templates = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    write_json(folder / "tokenizer_config.json", {"chat_template": templates})

    assert open_checkpoint(folder).chat_template == {"default": "a", "tool_use": "b"}
    write_json(folder / "chat_template.json", {"chat_template": "of the processor"})
    assert open_checkpoint(folder).chat_template == "of the processor"
    (folder / "chat_template.jinja").write_text("c")
    assert open_checkpoint(folder).chat_template == "c"


@pytest.mark.parametrize("said", [[{"name": "default"}], [5], 5, {"default": "a"}])
def test_templates_that_are_no_texts_by_name_are_refused(folder, said):
    write_json(folder / "tokenizer_config.json", {"chat_template": said})

    with pytest.raises(CheckpointError, match="neither a text nor a list of items with a name"):
        open_checkpoint(folder)


def test_a_folder_without_tokenizer_or_template_opens(folder):
    checkpoint = open_checkpoint(folder)

    assert checkpoint.tokenizer is None
    assert checkpoint.chat_template is None


def test_a_folder_with_an_unusual_tokenizer_is_its_source(folder):
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})

    assert open_checkpoint(folder).tokenizer == folder


def test_a_hub_name_is_refused_and_not_downloaded():
    with pytest.raises(ConfigError, match=r"'org/some-model'.*an engine downloads nothing"):
        open_checkpoint("org/some-model")


def test_other_paths_are_refused_saying_what_was_found(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")

    with pytest.raises(ConfigError, match=r"no config\.json; it holds notes\.txt"):
        open_checkpoint(tmp_path)
    with pytest.raises(ConfigError, match=r"notes\.txt is not a model.*\.gguf"):
        open_checkpoint(tmp_path / "notes.txt")


def test_a_folder_of_pickles_that_are_no_archives_is_refused(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is not a zip archive"):
        open_checkpoint(folder)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_config_that_is_no_object_is_refused(folder, text):
    (folder / "config.json").write_text(text)

    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(folder)


@pytest.mark.model
@pytest.mark.parametrize(
    ("container", "folder"),
    [
        ("stories260K/stories260K.bin", "stories260K-hf"),
        ("stories260K/stories260K-f32.gguf", "stories260K-hf"),
        ("babyllama-105char/model5000.bin", "babyllama-105char-hf"),
    ],
)
def test_containers_of_a_trained_model_hold_exactly_what_its_folder_holds(container, folder):
    other = open_checkpoint(shared_data("models", *container.split("/")))
    truth = open_checkpoint(shared_data("models", folder))

    assert other.reader.names == truth.reader.names
    for name in truth.reader.names:
        np.testing.assert_array_equal(other.reader.read(name), truth.reader.read(name), name)
    said = set(truth.config) - {"torch_dtype", "pad_token_id", "eos_token_id"}
    assert {key: other.config[key] for key in said} == {key: truth.config[key] for key in said}
    assert other.end_ids == truth.end_ids == {2}


@pytest.mark.model
def test_quantised_weights_of_a_trained_model_are_within_half_a_step():
    quantised = open_checkpoint(shared_data("models", "stories260K", "stories260K-q8_0.bin"))
    truth = open_checkpoint(shared_data("models", "stories260K-hf"))

    for name in truth.reader.names:
        wanted = truth.reader.read(name)
        step = np.abs(wanted).max() / 127 if "proj" in name or "embed" in name else 0
        assert np.abs(quantised.reader.read(name) - wanted).max() <= 0.51 * step, name


@pytest.mark.model
def test_the_tokenizer_beside_a_bin_file_is_found():
    stories = open_checkpoint(shared_data("models", "stories260K", "stories260K.bin"))

    assert isinstance(stories.tokenizer, Vocabulary)
    assert len(stories.tokenizer.pieces) == 512


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("depth", [100, 500, 100_000])
def test_nesting_without_end_is_refused_naming_the_file(folder, name, depth):
    (folder / name).write_text('{"architectures": ' + "[" * depth + "]" * depth + "}")

    with pytest.raises(CheckpointError, match=rf"{re.escape(name)}: tables and lists are nested"):
        open_checkpoint(folder)


def test_a_config_in_another_encoding_is_refused_naming_the_file(folder):
    (folder / "config.json").write_bytes(b'{"model_type": "m\xc9"}')

    with pytest.raises(CheckpointError, match=r"config\.json is not JSON: 'utf-8'"):
        open_checkpoint(folder)
