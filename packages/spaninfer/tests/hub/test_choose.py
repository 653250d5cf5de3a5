"""The choice of a repository's files: tables of listings as published repositories have them."""

import pytest
from spaninfer.hub.choose import choose
from spaninfer.hub.name import HubName
from spaninfer_engine import ConfigError

FOLDER = {
    *("README.md", "LICENSE", ".gitattributes", "config.json", "generation_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "merges.txt", "vocab.json", "chat_template.jinja"),
    *("model.safetensors.index.json", "model-00001-of-00002.safetensors"),
    *("model-00002-of-00002.safetensors", "pytorch_model.bin", "onnx/model.onnx"),
    *("onnx/config.json", "original/consolidated.00.pth", "original/params.json", "model.py"),
}
GGUF = ("m-Q4_0.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "sub/m.F16.gguf", "README.md")


def test_a_folder_is_fetched_without_what_the_engine_does_not_read():
    chosen = choose(HubName("org/m"), FOLDER)

    assert set(chosen.small) == {
        *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
        *("merges.txt", "vocab.json", "chat_template.jinja", "model.safetensors.index.json"),
    }
    assert chosen.weights == tuple(f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    assert chosen.gguf is None


def test_a_gguf_model_in_several_files_is_fetched_whole_and_opened_by_the_first():
    split = [f"Q4_K_M/m-Q4_K_M-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    files = {*GGUF[2:], *split, "Q2_K/m-Q2_K-00001-of-00001.gguf"}

    chosen = choose(HubName("org/m", tag="Q4_K_M"), files)

    assert (chosen.weights, chosen.gguf) == (tuple(split), split[0])


def test_weights_under_two_kinds_of_names_are_fetched_once():
    files = {"config.json", "consolidated.safetensors", "model.safetensors"}

    assert choose(HubName("org/m"), files).weights == ("model.safetensors",)
    assert choose(HubName("org/m"), files - {"model.safetensors"}).weights == (
        "consolidated.safetensors",
    )


def test_weights_of_pytorch_are_fetched_where_there_are_no_others():
    shards = {f"pytorch_model-0000{n}-of-00002.bin" for n in (1, 2)}
    files = {"config.json", "pytorch_model.bin.index.json", "training_args.bin", *shards}

    chosen = choose(HubName("org/m"), files)

    assert set(chosen.weights) == shards
    assert set(chosen.small) == {"config.json", "pytorch_model.bin.index.json"}


def test_modules_of_sentence_transformers_come_along():
    files = {
        *("config.json", "model.safetensors", "modules.json", "1_Pooling/config.json"),
        *("2_Dense/config.json", "2_Dense/model.safetensors", "openvino/config.json"),
    }

    chosen = choose(HubName("org/m"), files)

    assert {*chosen.small, *chosen.weights} == files - {"openvino/config.json"}


@pytest.mark.parametrize(
    ("tag", "file"),
    [
        ("Q4_0", "m-Q4_0.gguf"),
        ("q4_k_m", "m-Q4_K_M.gguf"),
        ("Q8_0", "m-Q8_0.gguf"),
        ("F16", "sub/m.F16.gguf"),
    ],
)
def test_a_tag_picks_one_gguf_file(tag, file):
    assert choose(HubName("org/m", tag=tag), GGUF).gguf == file


def test_the_only_gguf_file_needs_no_tag():
    assert choose(HubName("org/m"), ["m.gguf", "README.md"]).gguf == "m.gguf"


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        (HubName("org/m"), GGUF, "several GGUF files; .*org/m:TAG with F16, Q4_0, Q4_K_M, Q8_0"),
        (HubName("org/m", tag="Q2_K"), GGUF, "no GGUF file with Q2_K; .*F16, Q4_0"),
        (HubName("org/m", tag="Q4_0"), FOLDER, "org/m has no GGUF files; it has .gitattributes"),
        (HubName("org/m"), ["pytorch_model.bin"], "no config.json with .*it has pytorch_model.bin"),
        (HubName("org/m"), [], "it has no files"),
        (HubName("org/m"), ["m-Q8_0-00001-of-00002.gguf"], "has 1 of the 2 files of m-Q8_0"),
    ],
)
def test_what_cannot_be_chosen_is_refused_with_what_is_there(name, files, message):
    with pytest.raises(ConfigError, match=message):
        choose(name, files)
