from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shared_data import shared_data
from spaninfer_engine.errors import CheckpointError, NotBuilt
from spaninfer_engine.load.folders.sentence import SentenceSettings, read_sentence_settings
from spaninfer_engine.spec.pooling_nodes import Pool, TextSettings

ROOM = "sentence_transformers.models"


def write(
    folder: Path, pooling: Any, *, types: str = "Transformer Pooling", text: Any = None
) -> None:
    """Write the files of sentence-transformers; `types` are those of its modules."""
    paths = {"Transformer": ""}
    modules = [
        {"idx": number, "name": str(number), "path": paths.get(kind, f"{number}_{kind}"),
         "type": f"{ROOM}.{kind}"}
        for number, kind in enumerate(types.split())
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if text is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps(text))


def test_a_folder_without_modules_says_nothing(tmp_path: Path) -> None:
    assert read_sentence_settings(tmp_path) is None


@pytest.mark.model
def test_the_files_of_bge_mean_the_first_token_normalised() -> None:
    settings = read_sentence_settings(shared_data("tokenizers", "bge-large-zh-v1.5"))

    assert settings == SentenceSettings(
        Pool(("cls",), normalise=True), TextSettings(lower_case=True), max_len=512
    )


@pytest.mark.parametrize(
    ("said", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, ["cls"]),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, ["mean"]),
        ({"pooling_mode_lasttoken": True}, ["last"]),
        ({"pooling_mode": "lasttoken"}, ["last"]),
        ({"pooling_mode": ["cls"]}, ["cls"]),
        ({"pooling_mode": "weightedmean"}, ["weighted_mean"]),
        ({"pooling_mode_weightedmean_tokens": True}, ["weighted_mean"]),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, ["mean_sqrt"]),
        ({"pooling_mode_max_tokens": True}, ["max"]),
        ({"word_embedding_dimension": 64}, ["mean"]),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ["cls", "mean"]),
        ({"pooling_mode": ["mean", "max", "cls"]}, ["cls", "max", "mean"]),
    ],
)
def test_poolings_are_read_in_either_spelling_and_in_the_order_of_their_vectors(
    tmp_path: Path, said: Any, pooling: Any
) -> None:
    write(tmp_path, said)

    settings = read_sentence_settings(tmp_path)

    assert settings == SentenceSettings(Pool(tuple(pooling), normalise=False), TextSettings())


@pytest.mark.parametrize(
    "said",
    [
        {"pooling_mode_of_attention": True},
        {"pooling_mode": ["cls", "attention"]},
        {"pooling_mode": 3},
    ],
)
def test_a_pooling_that_is_not_built_is_refused_with_its_name(tmp_path: Path, said: Any) -> None:
    write(tmp_path, said)

    with pytest.raises(NotBuilt, match=r"config\.json: pooling by .* is not built; built is one"):
        read_sentence_settings(tmp_path)


def test_modules_that_are_not_built_are_refused_with_their_names(tmp_path: Path) -> None:
    write(tmp_path, {}, types="Transformer Pooling Normalize Dense")

    with pytest.raises(
        NotBuilt, match="lists Transformer, Pooling, Normalize, Dense; supported are"
    ):
        read_sentence_settings(tmp_path)


def test_a_prompt_that_only_other_tokens_are_pooled_behind_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"include_prompt": False})

    with pytest.raises(NotBuilt, match="include_prompt is false"):
        read_sentence_settings(tmp_path)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"prompts": ["query: "]}, "prompts is .*; it is a table of texts"),
        ({"prompts": {"query": 3}}, "prompts is .*; it is a table of texts"),
        ({"prompts": {"q": ""}, "default_prompt_name": "d"}, "its prompts are 'q'"),
        ({"default_prompt_name": "d"}, "default_prompt_name is 'd'; its prompts are none"),
    ],
    ids=str,
)
def test_prompts_that_are_none_are_refused(tmp_path: Path, said: Any, told: str) -> None:
    write(tmp_path, {})
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(said))

    with pytest.raises(CheckpointError, match=told):
        read_sentence_settings(tmp_path)


@pytest.mark.parametrize("said", [0, -1, "512", 1.5, True])
def test_a_length_that_is_none_is_refused(tmp_path: Path, said: Any) -> None:
    write(tmp_path, {}, text={"max_seq_length": said})

    with pytest.raises(CheckpointError, match=r"max_seq_length is .*; it is a whole number"):
        read_sentence_settings(tmp_path)


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        ({}, "expected a JSON list"),
        (["Transformer"], "is no module"),
        ([{"type": 3, "path": ""}], "is no module"),
    ],
)
def test_modules_of_another_form_are_refused(tmp_path: Path, modules: Any, told: str) -> None:
    (tmp_path / "modules.json").write_text(json.dumps(modules))

    with pytest.raises(CheckpointError, match=told):
        read_sentence_settings(tmp_path)


def test_a_module_whose_path_is_none_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {})
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[1]["path"] = "a\0b"
    (tmp_path / "modules.json").write_text(json.dumps(modules))

    with pytest.raises(CheckpointError, match=r"the path .* leads nowhere"):
        read_sentence_settings(tmp_path)


@pytest.mark.parametrize("path", ["../elsewhere", "/etc"])
def test_a_module_outside_of_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    write(tmp_path, {})
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[1]["path"] = path
    (tmp_path / "modules.json").write_text(json.dumps(modules))

    with pytest.raises(CheckpointError, match="leads out of the model's folder"):
        read_sentence_settings(tmp_path)


def test_a_pooling_without_its_config_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {})
    (tmp_path / "1_Pooling" / "config.json").unlink()

    with pytest.raises(CheckpointError, match=r"1_Pooling.config\.json is missing"):
        read_sentence_settings(tmp_path)
