"""Names and shapes of every decoder family against what transformers builds and saves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from families import FAMILIES, Family, published
from spaninfer_engine.spec import check, find, parameter_count, resolve

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("error::spaninfer_engine.spec.UnreadConfigKeys"),
]

EXPERTS = [
    name
    for name in FAMILIES
    if any(word in name for word in ("moe", "mixtral", "deepseek", "minimax"))
]
TIED = ["llama tied", "qwen2 windows", "gemma", "gemma2", "gemma3", "minicpm3", "falcon 7b",
        "bloom", "opt", "opt 350m", "granite", "smollm3"]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_names_and_shapes_are_those_of_the_model_in_memory(family: Family) -> None:
    config, shapes = family.config_json(), family.shapes()

    decoder = resolve(find(config), config, shapes)

    check(decoder, shapes)
    assert parameter_count(decoder) == sum(map(_size, shapes.values()))


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_both_spellings_of_a_config_mean_the_same_model(family: Family) -> None:
    config = family.config_json()

    assert resolve(find(config), published(config)) == resolve(find(config), config)


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_are_found_one_by_one_in_a_saved_checkpoint(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]

    shapes = _saved(family, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    decoder = resolve(find(config), config)

    check(decoder, shapes)
    assert parameter_count(decoder) == sum(map(_size, shapes.values()))


@pytest.mark.parametrize("name", TIED)
def test_a_tied_head_is_neither_expected_nor_counted(name: str, tmp_path: Path) -> None:
    shapes = _saved(FAMILIES[name], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())

    decoder = resolve(find(config), config, shapes)

    assert decoder.head.tied
    check(decoder, shapes)
    assert parameter_count(decoder) == sum(map(_size, shapes.values()))


def test_a_prefix_that_a_base_model_lacks_is_left_out() -> None:
    family = FAMILIES["llama tied"]
    config, full = family.config_json(), family.shapes()
    bare = {
        name.removeprefix("model."): shape for name, shape in full.items() if "lm_head" not in name
    }

    decoder = resolve(find(config), config, bare)

    check(decoder, bare)
    assert decoder.embedding.table.name == "embed_tokens.weight"


def _saved(family: Family, folder: Path) -> dict[str, tuple[int, ...]]:
    """Save a model as transformers does; return names and shapes of what lies on disk."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", minversion="5.0")
    from safetensors import safe_open

    with torch.device("cpu"):
        config = getattr(transformers, family.config)(**family.arguments)
        getattr(transformers, family.model)(config).save_pretrained(folder)
    with safe_open(folder / "model.safetensors", "numpy") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
