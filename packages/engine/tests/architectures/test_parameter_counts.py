"""Parameter counts of published models: each config.json resolves to the number on its card.

published.json holds what decides of each config.json, and the published count. Names that end in
", text" are the text models of such configs, by the class that is theirs. Where none is
known for certain, the count is worked out here from the sizes.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from shared_data import shared_data
from spaninfer_engine.errors import EngineError, NotBuilt, UnknownArchitecture
from spaninfer_engine.spec import UnreadConfigKeys, find, parameter_count, resolve
from spaninfer_engine.spec.describe import list_specs

PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text())

_GLM_5_ATTENTION = (  # with the norms of a layer
    2048 * 6144 + 2048 + 64 * 256 * 2048 + 576 * 6144 + 512 + 64 * 448 * 512 + 6144 * 64 * 256
    + 2 * 6144
)  # fmt: skip
_GLM_5_INDEXER = 32 * 128 * 2048 + 128 * 6144 + 2 * 128 + 32 * 6144


def _delta_layer(hidden: int, *, keys: int, values: int, heads: int) -> int:
    """Projections, convolution, two numbers per head, a norm of 128 channels, output projection."""
    projected = 2 * keys + 2 * values + 2 * heads
    return (projected + values) * hidden + 4 * (2 * keys + values) + 2 * heads + 128


def _qwen3_tower(out: int) -> int:
    """Patches, positions, 27 layers and a merger to `out` channels; everything but them biased."""
    layer = 4 * 1152**2 + 4 * 1152 + 2 * 1152 * 4304 + 4304 + 1152 + 4 * 1152
    merger = 2 * 1152 + 4608**2 + 4608 + 4608 * out + out
    return 3 * 2 * 16**2 * 1152 + 1152 + 2304 * 1152 + 27 * layer + merger


def _pixtral(out: int) -> int:
    """Patches, 24 layers, norms in front and behind, four patches to one, an MLP to `out`."""
    layer = 4 * 1024**2 + 3 * 1024 * 4096 + 2 * 1024
    merger = 4 * 1024**2 + 1024 * out + out**2
    return 3 * 14**2 * 1024 + 24 * layer + 2 * 1024 + merger


def _pixtral_12b() -> int:
    """The same but for an MLP of each patch, of 256 pixels."""
    return _pixtral(5120) - 3 * (14**2 - 16**2) * 1024 - 4 * 1024**2 - 1024 + 2 * 5120


def _clip(out: int) -> int:
    """Patches, positions with a class token, 23 layers of 24, norm in front, an MLP to `out`."""
    layer = 4 * 1024**2 + 4 * 1024 + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024
    mlp = 1024 * out + out**2 + 2 * out
    return 3 * 14**2 * 1024 + 577 * 1024 + 1024 + 23 * layer + 2 * 1024 + mlp


def _internvit(out: int) -> int:
    """Patches, positions with a class token, 24 layers with factors, a norm, an MLP to `out`."""
    layer = 4 * 1024**2 + 4 * 1024 + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024 + 2 * 1024
    mlp = 2 * 4096 + 4096 * out + out**2 + 2 * out
    return 3 * 14**2 * 1024 + 1024 + 1025 * 1024 + 1024 + 24 * layer + mlp


def _llama4_tower() -> int:
    """Patches, positions with a class token, 34 layers, norms; an MLP and a projection to 5120."""
    layer = 4 * 1408**2 + 4 * 1408 + 2 * 1408 * 5632 + 5632 + 1408 + 4 * 1408
    merger = 4 * 1408 * 4096 + 4096**2 + 4096 * 5120
    return 3 * 14**2 * 1408 + 577 * 1408 + 1408 + 34 * layer + 4 * 1408 + merger


TOWERS = {
    "Qwen3.5-27B": _qwen3_tower(5120),
    "Qwen3.5-35B-A3B": _qwen3_tower(2048),
    "Ministral-3-3B": _pixtral(3072),
    "Pixtral-12B": _pixtral_12b(),
    "InternVL3-1B": _internvit(896),
    "LLaVA-1.6-Vicuna-7B": _clip(4096) + 4096,
    "LLaVA-1.6-Mistral-7B": _clip(4096) + 4096,
    "LLaVA-1.5-7B": _clip(4096),  # published are 7,063,427,072: a layer and a norm more
    "Llama-4-Scout-17B-16E": _llama4_tower(),  # with the text model 108,641,793,536, as published
}
BY_HAND = {  # head and embedding, layers of attention, MLP and norms, final norm
    "XVERSE-13B": 2 * 100278 * 5120 + 40 * (4 * 5120**2 + 3 * 5120 * 13824 + 2 * 5120) + 5120,
    "InternLM-7B": (
        2 * 103168 * 4096 + 32 * (4 * 4096**2 + 4 * 4096 + 3 * 4096 * 11008 + 2 * 4096) + 4096
    ),
    "InternLM-20B": 2 * 103168 * 5120 + 60 * (4 * 5120**2 + 3 * 5120 * 13824 + 2 * 5120) + 5120,
    "AquilaChat2-34B": (
        2 * 100008 * 6144
        + 60 * (2 * 6144**2 + 2 * 6144 * 8 * 128 + 3 * 6144 * 24576 + 2 * 6144)
        + 6144
    ),
    "MiniMax-M2.7": (
        2 * 200064 * 3072
        + 3072
        + 62 * (2 * 3072 * 6144 + 2 * 3072 * 1024 + 6144 + 1024 + 2 * 3072)
        + 62 * (256 * 3 * 3072 * 1536 + 256 * 3072 + 256)
    ),
    "InternVL3-1B": 494_032_768 + (2 * 151674 - 151936) * 896,  # Qwen2.5-0.5B, its head stored
    "GLM-4.5-Air": (  # without the layer that predicts one token more
        2 * 151552 * 4096 + 4096
        + 46 * (2 * 4096 * 12288 + 12288 + 2 * (4096 * 1024 + 1024) + 2 * 4096)
        + 3 * 4096 * 10944 + 45 * (129 * 3 * 4096 * 1408 + 128 * 4096 + 128)
    ),
    "GLM-4.6": (
        2 * 151552 * 5120 + 5120
        + 92 * (2 * 5120 * 12288 + 12288 + 2 * (5120 * 1024 + 1024) + 2 * 5120 + 2 * 128)
        + 3 * 3 * 5120 * 12288 + 89 * (161 * 3 * 5120 * 1536 + 160 * 5120 + 160)
    ),
    "DeepSeek-V3.2": 671_026_419_200  # DeepSeek-V3, and an indexer per layer
    + 61 * (64 * 128 * 1536 + 128 * 7168 + 2 * 128 + 64 * 7168),
    "GLM-5": (
        2 * 154880 * 6144 + 6144 + 78 * _GLM_5_ATTENTION + 78 * _GLM_5_INDEXER
        + 3 * 3 * 6144 * 12288 + 75 * (257 * 3 * 6144 * 2048 + 256 * 6144 + 256)
    ),
    "GLM-5.2": (  # three indexers, and one per four layers of the others
        2 * 154880 * 6144 + 6144 + 78 * _GLM_5_ATTENTION + 21 * _GLM_5_INDEXER
        + 3 * 3 * 6144 * 12288 + 75 * (257 * 3 * 6144 * 2048 + 256 * 6144 + 256)
    ),
    "Qwen3-Next-80B-A3B": (  # without what predicts further tokens
        2 * 151936 * 2048 + 2048
        + 12 * (2048 * 2 * 4096 + 2 * 2048 * 512 + 4096 * 2048 + 2 * 256)
        + 36 * _delta_layer(2048, keys=2048, values=4096, heads=32)
        + 48 * (513 * 3 * 2048 * 512 + 512 * 2048 + 2048 + 2 * 2048)
    ),
    "Qwen3.5-27B": (
        2 * 248320 * 5120 + 5120
        + 16 * (5120 * 2 * 6144 + 2 * 5120 * 1024 + 6144 * 5120 + 2 * 256)
        + 48 * _delta_layer(5120, keys=2048, values=6144, heads=48)
        + 64 * (3 * 5120 * 17408 + 2 * 5120)
    ),
    "Qwen3.5-35B-A3B": (
        2 * 248320 * 2048 + 2048
        + 10 * (2048 * 2 * 4096 + 2 * 2048 * 512 + 4096 * 2048 + 2 * 256)
        + 30 * _delta_layer(2048, keys=2048, values=4096, heads=32)
        + 40 * (257 * 3 * 2048 * 512 + 256 * 2048 + 2048 + 2 * 2048)
    ),
    "Llama-4-Scout-17B-16E": (
        2 * 202048 * 5120 + 5120 + 48 * (2 * 5120**2 + 2 * 5120 * 1024 + 2 * 5120)
        + 48 * (17 * 3 * 5120 * 8192 + 16 * 5120)
    ),
    "Orion-14B": (2 * 84608 * 5120 + 40 * (4 * 5120**2 + 3 * 5120 * 15360 + 4 * 5120) + 2 * 5120),
}  # fmt: skip

FILES = {
    "aiconfigurator/Qwen--Qwen2.5-72B_config.json": 72_706_203_648,
    "aiconfigurator/Qwen--Qwen3-30B-A3B_config.json": 30_532_122_624,
    "aiconfigurator/Qwen--Qwen3-0.6B_config.json": 596_049_920,
    "aiconfigurator/deepseek-ai--DeepSeek-V3_config.json": 671_026_419_200,
    "aiconfigurator/deepseek-ai--DeepSeek-R1_config.json": 671_026_419_200,
    "aiconfigurator/meta-llama--Meta-Llama-3.1-405B_config.json": 405_853_388_800,
    "aiconfigurator/mistralai--Mixtral-8x22B-v0.1_config.json": 140_620_634_112,
    "inference-sim/deepseek-v2-lite.json": 15_706_484_224,
    "inference-sim/qwen2.5-7b-instruct.json": 7_615_616_512,
    "infersim/qwen3-235B-A22B_config.json": 235_093_634_560,
    "llmservingsim/meta-llama--Llama-3.1-8B.json": 8_030_261_248,
    "mlc_presets/smollm_360m.json": 361_821_120,
    "mlc_presets/smollm_1_7b.json": 1_711_376_384,
    "mlc_presets/codellama_7b.json": 6_738_546_688,
    "mlc_presets/gemma2_2b-jpn.json": 2_614_341_888,
    "other/qwen2-boundless.json": 1_543_714_304,
    "mlc_presets/olmo2_7b.json": 7_298_617_344,
    "mlc_presets/phi-4.json": 3_836_021_760,
    "aiconfigurator/meta-llama--Llama-4-Scout-17B-16E-Instruct_config.json": (
        2 * 202048 * 5120
        + 5120
        + 48 * (2 * 5120**2 + 2 * 5120 * 1024 + 2 * 5120)
        + 48 * (17 * 3 * 5120 * 8192 + 16 * 5120)
    ),
    "aiconfigurator/meta-llama--Llama-4-Maverick-17B-128E-Instruct_config.json": (
        2 * 202048 * 5120
        + 5120
        + 48 * (2 * 5120**2 + 2 * 5120 * 1024 + 2 * 5120)
        + 24 * (129 * 3 * 5120 * 8192 + 128 * 5120)
        + 24 * 3 * 5120 * 16384
    ),
    "mlc_presets/ministral3_3b_2512.json": 3_429_006_336 + _pixtral(3072),
    "aiconfigurator/moonshotai--Kimi-K2-Instruct_config.json": 1_026_408_232_448,
    "aiconfigurator/openai--gpt-oss-120b_config.json": 116_829_156_672,
}


@pytest.mark.filterwarnings("ignore::spaninfer_engine.spec.TowerNotUsed")
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_has_the_published_number_of_parameters(name: str) -> None:
    config, wanted = PUBLISHED[name]["config"], PUBLISHED[name]["parameters"]
    wanted = (wanted or BY_HAND[name.removesuffix(", text")]) + TOWERS.get(name, 0)

    with warnings.catch_warnings():
        warnings.simplefilter("error", UnreadConfigKeys)
        decoder = resolve(find(config), config)

    assert parameter_count(decoder) == wanted


def test_every_spec_names_the_checkpoints_that_it_is_checked_with_here() -> None:
    checked: dict[str, list[str]] = {}
    for name, row in PUBLISHED.items():
        checked.setdefault(find(row["config"]).name, []).append(name)

    assert {each.name: list(each.checked) for each in list_specs() if each.checked} == checked


@pytest.mark.model
@pytest.mark.filterwarnings("ignore::spaninfer_engine.spec.TowerNotUsed")
@pytest.mark.filterwarnings("ignore::spaninfer_engine.spec.UnreadConfigKeys")
@pytest.mark.parametrize("file", FILES)
def test_whole_config_files_resolve_alike(file: str) -> None:
    config = json.loads(shared_data("configs", *file.split("/")).read_text())

    decoder = resolve(find(config), config)

    assert parameter_count(decoder) == FILES[file]


@pytest.mark.model
@pytest.mark.filterwarnings("ignore::spaninfer_engine.spec.TowerNotUsed")
@pytest.mark.filterwarnings("ignore::spaninfer_engine.spec.UnreadConfigKeys")
def test_every_config_file_is_resolved_or_refused_with_a_reason() -> None:
    served, refused = 0, {}

    for path in sorted(shared_data("configs").glob("*/*.json")):
        if path.parent.name == "inferflow_specs":
            continue  # definitions of that engine, no config.json
        config = json.loads(path.read_text())
        try:
            resolve(find(config), config)
            served += 1
        except (UnknownArchitecture, NotBuilt):
            continue
        except EngineError as error:
            refused[path.name] = str(error)
    unnamed = {name for name in refused if "hf_quant_config" in name}  # say nothing of a model

    assert served > 90
    assert set(refused) - unnamed == {
        "deepseek_v3_config.json",  # of a simulator, under names of its own
        "minicpm-moe-8x2b.json",  # experts of a form that has no spec
        "mistral_7b.json",  # attention sinks, an addition of another engine
        "phi-1_5.json",  # in the layout that preceded transformers' own
        "phi-2.json",
    }
