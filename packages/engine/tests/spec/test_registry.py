from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from families import FAMILIES
from spaninfer_engine.errors import ConfigError, UnknownArchitecture
from spaninfer_engine.spec import find, load
from spaninfer_engine.spec.registry import by_class, by_model_type, library


@pytest.fixture
def other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that brings architectures of its own."""
    specs = tmp_path / "foreign_specs"
    specs.mkdir()
    (specs / "__init__.py").touch()
    (specs / "foreign.toml").write_text('hf = "ForeignForCausalLM"\ninherits = "llama"')
    (specs / "llama.toml").write_text('hf = "LlamaForCausalLM"\nkind = "encoder"')
    info = tmp_path / "foreign_specs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-specs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[spaninfer.architectures]\nforeign = foreign_specs\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    _forget()
    yield
    _forget()


def _forget() -> None:
    library.cache_clear()
    by_class.cache_clear()
    by_model_type.cache_clear()


def test_every_bundled_file_is_a_spec() -> None:
    names = [name for name in library() if load(name).kind]

    assert len(names) >= 37
    assert {"llama", "qwen3_moe", "deepseek_v3", "bert", "t5", "qwen2_5_vl"} <= set(names)


def test_bundled_specs_for_one_class_need_different_keys() -> None:
    claimed = [(hf, load(name).needs) for name in library() for hf in load(name).hf]

    assert len(claimed) == len(set(claimed))
    assert {hf for hf, needs in claimed if not needs} == set(by_class())


def test_of_specs_for_one_class_the_config_chooses() -> None:
    config = {"architectures": ["QWenLMHeadModel"]}

    assert find(config) is find({**config, "visual": None}) is load("qwen1")
    assert find({**config, "visual": {"width": 1664}}) is load("qwen_vl")
    assert find({**config, "audio": {"n_state": 1280}}) is load("qwen_audio")


@pytest.mark.parametrize(
    ("vision", "text", "wanted"),
    [
        ("clip_vision_model", "llama", "llava"),
        ("clip_vision_model", "mistral", "llava_mistral"),
        ("pixtral", "mistral", "pixtral"),
        ("pixtral", "llama", "llava"),  # which refuses the tower by name
    ],
)
def test_towers_and_text_models_choose_among_the_specs_of_a_class(
    vision: str, text: str, wanted: str
) -> None:
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "vision_config": {"model_type": vision},
        "text_config": {"model_type": text},
    }

    assert find(config).name == wanted


def test_a_spec_is_read_once() -> None:
    assert load("qwen3") is find({"architectures": ["Qwen3ForCausalLM"]})


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownArchitecture, match="nearest are qwen3") as caught:
        load("qwen33")

    assert "--spec" in str(caught.value)


def test_an_unknown_class_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownArchitecture, match="LlamaForCausalLM") as caught:
        find({"architectures": ["LlamasForCausalLM"]})

    assert caught.value.name == "LlamasForCausalLM"


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [
        ("Gemma3nForConditionalGeneration", "Gemma3"),
        ("Qwen3OmniMoeForConditionalGeneration", "Qwen3"),
        ("Llama5ForConditionalGeneration", "Llama"),
        ("Phi4MMForCausalLM", "Phi"),
        ("PhiMoEForCausalLM", "Phi"),
        ("GraniteMoeHybridForCausalLM", "Granite"),
        ("DeepseekV33ForCausalLM", "DeepseekV3"),
    ],
)
def test_the_nearest_of_an_unknown_class_is_of_its_family(unknown: str, nearest: str) -> None:
    with pytest.raises(UnknownArchitecture, match=f"nearest are {nearest}"):
        find({"architectures": [unknown]})


@pytest.mark.parametrize("classes", [{}, {"architectures": None}, {"architectures": []}])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_config_without_classes_is_found_by_its_model_type(
    name: str, classes: dict[str, object]
) -> None:
    config = FAMILIES[name].config_json()
    expected = find(config)
    del config["architectures"]

    assert find(config | classes) is expected


def test_no_model_type_belongs_to_two_bundled_specs() -> None:
    claimed = [each for name in library() for each in load(name).model_type]

    assert len(claimed) == len(set(claimed)) == len(by_model_type())


def test_an_unknown_model_type_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownArchitecture, match="'qwen3_nextt'; nearest are qwen3"):
        find({"model_type": "qwen3_nextt"})


def test_the_first_class_that_is_known_counts() -> None:
    said = ["LlamaBidirectionalModel", "MistralForCausalLM", "LlamaForCausalLM"]

    assert find({"architectures": said, "model_type": "llama"}).name == "mistral"


def test_a_class_that_is_not_known_is_not_replaced_by_its_model_type() -> None:
    with pytest.raises(UnknownArchitecture, match="LlamaBidirectionalModel"):
        find({"architectures": ["LlamaBidirectionalModel"], "model_type": "llama"})


@pytest.mark.parametrize(
    "said", [{}, {"architectures": []}, {"architectures": None}, {"architectures": [1]}]
)
def test_a_config_without_an_architecture_is_refused_with_a_way_out(
    said: dict[str, object],
) -> None:
    with pytest.raises(ConfigError, match=r"names no architecture .*--spec"):
        find(said)


@pytest.mark.usefixtures("other_package")
def test_another_package_adds_architectures_and_takes_none() -> None:
    assert find({"architectures": ["ForeignForCausalLM"]}).name == "foreign"
    assert load("foreign").entry("mlp", "bias").source == "llama.toml"
    assert load("llama").kind == "decoder"
