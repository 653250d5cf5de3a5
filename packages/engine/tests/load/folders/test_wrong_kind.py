"""Files and folders mistaken for a model: each is refused in one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from random_llama import write_model
from spaninfer_engine.errors import CheckpointError, ConfigError, EngineError
from spaninfer_engine.load import open_checkpoint

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123456\n"
PAGE = "\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "model", 1, float)
    return tmp_path / "model"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_git_lfs_pointer_is_recognised(folder: Path, name: str) -> None:
    (folder / name).write_text(POINTER)

    with pytest.raises(CheckpointError, match=rf"{name} is a git-lfs pointer.*git lfs pull"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
@pytest.mark.parametrize("page", [PAGE, "<html lang='en'>", "<?xml version='1.0'?><Error/>"])
def test_a_web_page_is_recognised(folder: Path, name: str, page: str) -> None:
    (folder / name).write_text(page)

    with pytest.raises(CheckpointError, match=rf"{name} is a web page.*hf download"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["model.gguf", "stories.bin"])
@pytest.mark.parametrize(("text", "kind"), [(POINTER, "git-lfs pointer"), (PAGE, "web page")])
def test_single_files_are_looked_at_too(tmp_path: Path, name: str, text: str, kind: str) -> None:
    (tmp_path / name).write_text(text)

    with pytest.raises(CheckpointError, match=f"{name} is a {kind}"):
        open_checkpoint(tmp_path / name)


def test_a_link_to_nowhere_is_an_unfinished_download(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("../../blobs/0123")

    with pytest.raises(
        CheckpointError, match=r"is a link to .*0123, which does not exist.*hf down"
    ):
        open_checkpoint(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.pt", "tokenizer.json"])
def test_a_pipe_is_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)

    with pytest.raises(CheckpointError, match=rf"{name} is a pipe, a socket"):
        open_checkpoint(folder)
    with pytest.raises(CheckpointError, match=rf"{name} is a pipe, a socket"):
        open_checkpoint(folder / name)


@pytest.mark.parametrize("with_config", [True, False])
@pytest.mark.parametrize("base", ["org/base", None])
def test_an_adapter_is_recognised_and_its_base_named(
    tmp_path: Path, with_config: bool, base: str | None
) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    (tmp_path / "adapter_model.safetensors").touch()
    if with_config:
        (tmp_path / "config.json").write_text("{}")
    named = f"is an adapter of {base}, not" if base else "is an adapter, not"

    with pytest.raises(ConfigError, match=f"{named} a whole model.*merge it into its base"):
        open_checkpoint(tmp_path)


def test_a_whole_model_with_an_adapter_config_beside_it_is_read(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")

    with open_checkpoint(folder) as checkpoint:
        assert "model.norm.weight" in checkpoint.reader.names


@pytest.mark.parametrize("with_config", [True, False])
def test_a_folder_of_gguf_files_lists_them(tmp_path: Path, with_config: bool) -> None:
    for name in ("b-q8_0.gguf", "a-f16.gguf"):
        (tmp_path / name).touch()
    if with_config:
        (tmp_path / "config.json").write_text("{}")

    with pytest.raises(ConfigError, match=r"give one of them.*: a-f16\.gguf, b-q8_0\.gguf$"):
        open_checkpoint(tmp_path)


def test_a_pickle_of_another_name_is_told_what_names_are_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "consolidated.00.pth")

    with pytest.raises(CheckpointError, match=r"consolidated.*read from pytorch_model\*\.bin"):
        open_checkpoint(folder)


def test_a_config_alone_is_told_where_weights_come_from(folder: Path) -> None:
    (folder / "model.safetensors").unlink()

    with pytest.raises(
        CheckpointError, match=r"no \*\.safetensors; it holds config\.json.*hf down"
    ):
        open_checkpoint(folder)


def test_weights_alone_are_told_to_be_given_with_their_folder(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.safetensors holds weights only; give its fold"):
        open_checkpoint(folder / "model.safetensors")


def test_every_answer_is_one_line(folder: Path) -> None:
    (folder / "model.safetensors").write_text(POINTER)

    with pytest.raises(EngineError) as caught:
        open_checkpoint(folder)

    assert len(str(caught.value).splitlines()) == 1
