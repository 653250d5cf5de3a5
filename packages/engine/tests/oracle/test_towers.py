"""Outputs of towers for images and videos, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import EXACT, Backend
from media_models import (
    GRIDS,
    HEARING,
    SIGHTS,
    WIDE_HEARING,
    WIDE_SIGHTS,
    Hearing,
    HearingOracle,
    TowerOracle,
    clip,
    patches,
    save,
)
from oracle import TOLERANCE, deviation
from spaninfer_engine.backends.cpu.ops import CpuOps
from spaninfer_engine.backends.host.tower import Encoding, HostTower
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.program.bind import bind_all
from spaninfer_engine.program.lower_tower import lower_tower
from spaninfer_engine.program.packer import Packer
from spaninfer_engine.request.media import Levels, TowerInput
from spaninfer_engine.spec import Decoder, check, find, resolve
from tile_models import TILED, WIDE_TILED, Tiled, TiledOracle, tiles


@pytest.fixture(scope="module", params=SIGHTS)
def seeing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TowerOracle, Path]:
    """A model that sees, and its checkpoint."""
    folder = tmp_path_factory.mktemp("seeing")
    return save(SIGHTS[request.param], folder), folder


def tower_on(backend: Backend, folder: Path) -> tuple[HostTower[Any], Any]:
    """Return the tower of a checkpoint on a backend, and the operators."""
    checkpoint = open_checkpoint(folder)
    ops: Any = CpuOps() if backend.name == "cpu" else backend.make()
    reader = checkpoint.reader
    model = resolve(find(checkpoint.config), checkpoint.config, reader.names)
    check(model, {name: reader.shape(name) for name in reader.names})
    assert isinstance(model, Decoder)
    (tower,) = model.towers
    pack = Packer(ops, reader)
    return HostTower(lambda: bind_all(lower_tower(tower), ops, pack), ops, tower), ops


def all_of(encoding: Encoding[Any], ops: Any) -> list[np.ndarray]:
    return [ops.to_host(rows) for rows in (encoding.rows, *encoding.deep)]


def assert_rows_are_those_of(
    oracle: TowerOracle, folder: Path, backend: Backend, grids: Any
) -> None:
    tower, ops = tower_on(backend, folder)
    inputs = [
        patches(oracle.sight, kind, grid) for kind, grid in grids if kind in tower.tower.kinds
    ]

    encodings = tower.encode(inputs)

    for item, encoding in zip(inputs, encodings, strict=True):
        expected = oracle.features(item)
        found = all_of(encoding, ops)
        assert len(found) == len(expected) == 1 + len(tower.tower.deepstack)
        assert found[0].shape == (item.num_tokens, oracle.sight.width)
        for rows, wanted in zip(found, expected, strict=True):
            assert deviation(rows, wanted) < TOLERANCE


@pytest.mark.parametrize("backend", EXACT, ids=str)
def test_rows_of_a_batch_are_those_of_transformers_one_by_one(
    seeing: tuple[TowerOracle, Path], backend: Backend
) -> None:
    oracle, folder = seeing

    assert_rows_are_those_of(oracle, folder, backend, GRIDS)


@pytest.mark.slow
@pytest.mark.parametrize("size", WIDE_SIGHTS)
@pytest.mark.parametrize("backend", EXACT, ids=str)
def test_heads_of_published_sizes_are_as_exact(size: int, backend: Backend, tmp_path: Path) -> None:
    oracle = save(WIDE_SIGHTS[size], tmp_path)

    assert_rows_are_those_of(oracle, tmp_path, backend, [("image", (1, 20, 28)), GRIDS[1]])


def assert_tiles_are_seen(tiled: Tiled, folder: Path, backend: Backend) -> None:
    oracle = TiledOracle(tiled)
    oracle.save(folder)
    inputs = [tiles(tiled, count, seed) for seed, count in enumerate((1, 3, 1))]
    tower, ops = tower_on(backend, folder)

    encodings = tower.encode(inputs)

    for item, encoding in zip(inputs, encodings, strict=True):
        assert encoding.deep == ()
        assert deviation(ops.to_host(encoding.rows), oracle.rows(item)) < TOLERANCE


@pytest.mark.parametrize("backend", EXACT, ids=str)
@pytest.mark.parametrize("name", TILED)
def test_pictures_of_one_size_are_seen_as_by_transformers(
    name: str, backend: Backend, tmp_path: Path
) -> None:
    assert_tiles_are_seen(TILED[name], tmp_path, backend)


@pytest.mark.parametrize("backend", EXACT, ids=str)
def test_patches_of_bytes_are_seen_as_their_numbers(
    backend: Backend, seeing: tuple[TowerOracle, Path]
) -> None:
    oracle, folder = seeing
    tower, ops = tower_on(backend, folder)
    rng = np.random.default_rng(0)
    frames = oracle.sight.frames
    levels = Levels(rng.standard_normal((3, 256), np.float32), frames)
    codes = rng.integers(0, 256, (60, oracle.sight.numbers // frames), np.uint8)
    packed = TowerInput("image", codes, 15, bytes(32), (1, 6, 10), levels=levels)
    plain = TowerInput("image", packed.numbers, 15, bytes(32), (1, 6, 10))

    one, other = (all_of(tower.encode([each])[0], ops) for each in (packed, plain))

    for mine, wanted in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("size", WIDE_TILED)
@pytest.mark.parametrize("backend", EXACT, ids=str)
def test_wide_towers_see_tiles_as_exactly(size: int, backend: Backend, tmp_path: Path) -> None:
    assert_tiles_are_seen(WIDE_TILED[size], tmp_path, backend)


def assert_clips_are_heard(hearing: Hearing, folder: Path, backend: Backend, valid: Any) -> None:
    oracle = HearingOracle(hearing)
    oracle.save(folder)
    clips = [clip(hearing, count) for count in valid]
    tower, ops = tower_on(backend, folder)

    encodings = tower.encode(clips)

    for encoding, wanted in zip(encodings, oracle.rows(clips), strict=True):
        assert encoding.deep == ()
        assert deviation(ops.to_host(encoding.rows), wanted) < TOLERANCE


@pytest.mark.parametrize("backend", EXACT, ids=str)
def test_clips_of_any_length_are_heard_as_by_transformers(backend: Backend, tmp_path: Path) -> None:
    assert_clips_are_heard(HEARING, tmp_path, backend, (100, 99, 98, 97, 40, 3, 4, 5, 61))


@pytest.mark.slow
@pytest.mark.parametrize("backend", EXACT, ids=str)
def test_a_wide_tower_hears_as_exactly(backend: Backend, tmp_path: Path) -> None:
    assert_clips_are_heard(WIDE_HEARING, tmp_path, backend, (600, 333))
