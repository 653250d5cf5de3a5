"""Towers of a started engine, whose weights are read with the first media."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from media_models import GRIDS, HEARING, SIGHTS, HearingOracle, TowerOracle, clip, patches, save
from oracle import TOLERANCE, deviation
from spaninfer_engine.config import BackendName, EngineConfig
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.startup.build import build
from spaninfer_engine.startup.components import Parts
from spaninfer_engine.tools.conversion import convert

ITEMS = [patches(SIGHTS["qwen3_vl"], kind, grid) for kind, grid in GRIDS[:2]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[TowerOracle, Path]:
    """A model that sees, with deepstack and a position table."""
    folder = tmp_path_factory.mktemp("models") / "seeing"
    return save(SIGHTS["qwen3_vl"], folder), folder


def started(folder: Path, backend: BackendName = "cpu", **options: object) -> Parts:
    return build(EngineConfig(model=folder, backend=backend, memory=1 << 22, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["reference", "cpu", "torch"])
def test_weights_of_towers_are_read_with_the_first_media(
    seen: tuple[TowerOracle, Path], backend: BackendName
) -> None:
    oracle, folder = seen
    parts = started(folder, backend)
    (tower,) = parts.towers
    before = parts.weight_bytes

    encodings = tower.encode(ITEMS)

    assert before < 4 * sum(each.numel() for each in oracle.model.parameters())
    for item, encoding in zip(ITEMS, encodings, strict=True):
        for rows, wanted in zip(
            (encoding.rows, *encoding.deep), oracle.features(item), strict=True
        ):
            assert deviation(np.asarray(rows), wanted) < TOLERANCE
    parts.runner.close()
    with pytest.raises(AssertionError, match="closed"):  # its weights are given back
        tower.encode(ITEMS)


def test_files_that_are_gone_by_then_are_named(
    seen: tuple[TowerOracle, Path], tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    for file in seen[1].iterdir():
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    (tower,) = started(tmp_path / "model", "reference").towers
    (tmp_path / "model").rename(tmp_path / "moved")

    with pytest.raises(ConfigError, match=r"there is no file or folder '.*model'"):
        tower.encode(ITEMS)


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_converted_model_has_its_tower(
    seen: tuple[TowerOracle, Path], tmp_path: Path, quantize: str | None
) -> None:
    oracle, folder = seen
    packed = convert(folder, tmp_path / "packed", quantize=quantize)  # type: ignore[arg-type]

    (tower,) = started(packed).towers
    rows = [encoding.rows for encoding in tower.encode(ITEMS)]

    wanted = np.concatenate([oracle.features(item)[0] for item in ITEMS])
    error = deviation(np.concatenate(rows), wanted)
    assert error < (TOLERANCE if quantize is None else 0.2)


def test_a_converted_model_hears(tmp_path: Path) -> None:
    oracle = HearingOracle(HEARING)
    packed = convert(oracle.save(tmp_path / "model"), tmp_path / "packed")
    items = [clip(HEARING, 77)]

    (tower,) = started(packed).towers

    assert deviation(tower.encode(items)[0].rows, oracle.rows(items)[0]) < TOLERANCE


def test_a_tower_that_memory_does_not_hold_is_refused_with_the_first_media(tmp_path: Path) -> None:
    config = SIGHTS["qwen2_vl"].family.config_json()
    config["vision_config"]["embed_dim"] = 2**31
    (tmp_path / "config.json").write_text(json.dumps(config))

    (tower,) = started(tmp_path, weights="dummy").towers

    with pytest.raises(ConfigError, match="parameters of the model's tower for image and video"):
        tower.encode(ITEMS)


def test_a_model_of_noise_has_a_tower_of_noise(
    seen: tuple[TowerOracle, Path], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((seen[1] / "config.json").read_bytes())

    (tower,) = started(tmp_path, weights="dummy").towers
    first, second = (tower.encode(ITEMS)[0].rows for _ in range(2))

    assert first.shape == (ITEMS[0].num_tokens, 64)
    assert first.std() > 0
    np.testing.assert_array_equal(first, second)
