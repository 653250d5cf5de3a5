"""Rows of images and videos against the towers of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import EXACT, Backend
from media_models import GRIDS, SIGHTS, WIDE_SIGHTS, TowerOracle, patches, save
from oracle import TOLERANCE, deviation
from spaninfer_engine.backends.host.tower import Encoding, HostTower
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.ops.bound import TOWER
from spaninfer_engine.program.bind import bind
from spaninfer_engine.program.lower_tower import lower_tower
from spaninfer_engine.spec import Decoder, check, find, resolve


@pytest.fixture(scope="module", params=SIGHTS)
def seeing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TowerOracle, Path]:
    """A model that sees, and its checkpoint."""
    folder = tmp_path_factory.mktemp("seeing")
    return save(SIGHTS[request.param], folder), folder


def tower_on(backend: Backend, folder: Path) -> tuple[HostTower[Any], Any]:
    """Return the tower of a checkpoint on a backend, and the operators."""
    checkpoint, ops = open_checkpoint(folder), backend.make()
    reader = checkpoint.reader
    model = resolve(find(checkpoint.config), checkpoint.config, reader.names)
    check(model, {name: reader.shape(name) for name in reader.names})
    assert isinstance(model, Decoder)
    (tower,) = model.towers
    return HostTower(lambda: bind(lower_tower(tower), ops, reader)[TOWER].run, ops, tower), ops


def all_of(encoding: Encoding[Any], ops: Any) -> list[np.ndarray]:
    return [ops.to_host(rows) for rows in (encoding.rows, *encoding.deep)]


def assert_rows_are_those_of(
    oracle: TowerOracle, folder: Path, backend: Backend, grids: Any
) -> None:
    inputs = [patches(oracle.sight, kind, grid) for kind, grid in grids]
    tower, ops = tower_on(backend, folder)

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
