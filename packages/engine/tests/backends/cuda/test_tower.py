"""Towers on backend cuda: their bound programs, without a GPU, and their outputs."""

from __future__ import annotations

from collections import Counter
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from first_qwen import FIRST_QWEN, WIDE_FIRST_QWEN, save_first_qwen
from first_qwen_torch import FirstQwen
from media_models import (
    GRIDS,
    HEARING,
    SIGHTS,
    WIDE_HEARING,
    WIDE_SIGHTS,
    Hearing,
    HearingOracle,
    Sight,
    TowerOracle,
    clip,
    patches,
)
from noise import rms
from numpy.typing import NDArray
from spaninfer_engine.backends.host.tower import HostTower
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.ops.bound import EXTRA, TOWER, Programs
from spaninfer_engine.program.bind import bind_all
from spaninfer_engine.program.lower_tower import lower_tower
from spaninfer_engine.program.packer import Packer
from spaninfer_engine.request.media import TowerInput
from spaninfer_engine.spec import find, resolve
from spaninfer_engine.spec.nodes import Decoder
from tile_models import WIDE_TILED, TiledOracle, tiles

torch = pytest.importorskip("torch")

from spaninfer_engine.backends.cuda.tower import CudaTowerOps  # noqa: E402
from spaninfer_engine.backends.cuda.warmup import largest_input  # noqa: E402

WIDE_GRIDS = (("image", (1, 20, 28)), GRIDS[1], ("image", (1, 40, 36)))
SEEING = {name: (sight, GRIDS) for name, sight in SIGHTS.items()} | {
    f"heads of {size}": (sight, WIDE_GRIDS) for size, sight in WIDE_SIGHTS.items()
}
HEARERS = {
    "small": (HEARING, (100, 99, 98, 97, 40, 3, 4, 5, 61)),
    "wide": (WIDE_HEARING, (600, 333)),
}


def seen_by(sight: Sight, folder: Path) -> TowerOracle:
    """Write a checkpoint in bfloat16, and return the model in it, which computes in float32."""
    oracle = TowerOracle(sight)
    oracle.round_to_bfloat16()
    oracle.save_as_published(folder)
    return oracle


def tower_on(ops: Any, folder: Path) -> tuple[HostTower[Any], Programs[Any]]:
    """Return the tower of a checkpoint, and its programs."""
    checkpoint = open_checkpoint(folder)
    model = resolve(find(checkpoint.config), checkpoint.config, checkpoint.reader.names)
    assert isinstance(model, Decoder)
    (tower,) = model.towers
    bound = bind_all(lower_tower(tower), ops, Packer(ops, checkpoint.reader))
    return HostTower(lambda: bound, ops, tower), bound


@pytest.mark.parametrize(
    ("name", "mlp", "norm"),
    [
        ("qwen2_vl", "activated_linear", "layer"),
        ("qwen2_5_vl", "gated_linears", "rms"),
        ("qwen3_vl", "activated_linear", "layer"),
    ],
)
def test_a_layer_is_one_launch_up_to_attention_and_one_for_each_projection(
    name: str, mlp: str, norm: str, tmp_path: Path
) -> None:
    seen_by(SIGHTS[name], tmp_path)

    tower, bound = tower_on(CudaTowerOps("bfloat16", "cpu"), tmp_path)

    names = Counter(step.name for step in bound[TOWER].kernels)
    layers = len(tower.tower.layers)
    assert names["project_rotate_attend"] == layers
    assert names[mlp] >= layers
    # Two a layer, the last one's norm being the merger's; deepstack comes between sum and norm.
    between = len(tower.tower.deepstack)
    assert names[f"project_add_{norm}_norm"] == 2 * layers - between
    assert not names.keys() & {"rotate", "attend_ragged", "split", "gate", "activation"}


@pytest.mark.parametrize("name", FIRST_QWEN)
def test_towers_of_the_first_qwen_models_are_planned(name: str, tmp_path: Path) -> None:
    save_first_qwen(tmp_path, FIRST_QWEN[name], rounded=True)

    tower, bound = tower_on(CudaTowerOps("bfloat16", "cpu"), tmp_path)

    names = Counter(step.name for step in bound[TOWER].kernels)
    assert names["activated_linear"] == len(tower.tower.layers) + (name == "qwen_audio")
    assert names["attend_ragged"] == len(tower.tower.layers)
    assert names["cross_attend"] == (name == "qwen_vl")
    assert (EXTRA in bound.keys) == (name == "qwen_audio")


def test_weights_come_in_whole_pieces_of_columns_with_zeros_behind() -> None:
    ops = CudaTowerOps("bfloat16", "cpu")
    weight = np.ones((3, 90), np.float32)

    packed = ops.pack([weight], ops.layout("linear", "weight"))

    assert packed.shape == (3, 96)
    assert packed[:, :90].eq(1).all()
    assert packed[:, 90:].eq(0).all()
    assert ops.pack([weight], ops.layout("blended_positions", "table")).shape == (3, 90)


@pytest.mark.parametrize("max_rows", [1, 16_384, 44_032])
def test_the_largest_input_is_one_batch_that_a_tower_takes(max_rows: int, tmp_path: Path) -> None:
    seen_by(SIGHTS["qwen2_vl"], tmp_path / "seeing")
    HearingOracle(HEARING).save(tmp_path / "hearing")
    for folder in ("seeing", "hearing"):
        tower, _ = tower_on(CudaTowerOps("bfloat16", "cpu"), tmp_path / folder)

        pieces = tower._reader.pieces(largest_input(tower.tower, max_rows))

        rows = sum(each.num_rows for each in pieces)
        assert len(pieces) == 1 or max_rows - pieces[0].num_rows < rows <= max_rows


# ---- on a GPU ------------------------------------------------------------------------------------


def rows_of(encodings: Any, ops: Any) -> list[list[NDArray[np.float32]]]:
    return [[ops.to_host(part) for part in (each.rows, *each.deep)] for each in encodings]


def in_bfloat16(oracle: TowerOracle, item: Any) -> tuple[NDArray[np.float32], ...]:
    """Return what the tower of transformers makes of an item in bfloat16."""
    return oracle.features_by(deepcopy(oracle.model.model).to("cuda", torch.bfloat16), item)


@pytest.mark.gpu
@pytest.mark.parametrize("name", SEEING)
def test_rows_are_no_further_from_float32_than_those_of_transformers(
    name: str, tmp_path: Path
) -> None:
    sight, grids = SEEING[name]
    oracle = seen_by(sight, tmp_path)
    ops = CudaTowerOps("bfloat16")
    tower, _ = tower_on(ops, tmp_path)
    inputs: list[Any] = [
        patches(sight, kind, grid) for kind, grid in grids if kind in tower.tower.kinds
    ]

    found = rows_of(tower.encode(inputs), ops)

    ours, theirs = [], []
    for item, rows in zip(inputs, found, strict=True):
        exact = oracle.features(item)
        assert len(rows) == len(exact)
        for mine, other, wanted in zip(rows, in_bfloat16(oracle, item), exact, strict=True):
            ours.append(rms(mine - wanted) / wanted.std())
            theirs.append(rms(other - wanted) / wanted.std())
    assert np.mean(ours) <= np.mean(theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("size", WIDE_TILED)
def test_tiles_are_no_further_from_float32_than_those_of_transformers(
    size: int, dtype: str, tmp_path: Path
) -> None:
    oracle = TiledOracle(WIDE_TILED[size])
    oracle.round_to_bfloat16()
    oracle.save(tmp_path)
    noisy = copy(oracle)
    noisy.model = deepcopy(oracle.model).to("cuda", getattr(torch, dtype))
    inputs = [tiles(oracle.tiled, count, seed) for seed, count in enumerate((1, 3, 1))]
    ops = CudaTowerOps(dtype)
    tower, _ = tower_on(ops, tmp_path)

    found = rows_of(tower.encode(inputs), ops)

    ours, theirs = [], []
    for item, (rows,) in zip(inputs, found, strict=True):
        exact = oracle.rows(item)
        ours.append(rms(rows - exact) / exact.std())
        theirs.append(rms(noisy.rows(item) - exact) / exact.std())
    assert np.mean(ours) <= 1.1 * np.mean(theirs)  # means of three differ by chance


@pytest.mark.gpu
@pytest.mark.parametrize("name", HEARERS)
def test_clips_are_heard_nearly_as_in_float32(name: str, tmp_path: Path) -> None:
    hearing, valid = HEARERS[name]
    oracle = HearingOracle(hearing)
    oracle.round_to_bfloat16()
    oracle.save(tmp_path)
    clips = [clip(hearing, count) for count in valid]
    ops = CudaTowerOps("bfloat16")
    tower, _ = tower_on(ops, tmp_path)

    found = rows_of(tower.encode(clips), ops)

    for (rows,), wanted in zip(found, oracle.rows(clips), strict=True):
        assert rms(rows - wanted) < 0.03 * wanted.std()


@pytest.mark.gpu
@pytest.mark.parametrize("configs", [FIRST_QWEN, WIDE_FIRST_QWEN], ids=["small", "wide"])
@pytest.mark.parametrize("name", FIRST_QWEN)
def test_rows_of_the_first_qwen_models_are_nearly_those_of_float32(
    name: str, configs: Any, tmp_path: Path
) -> None:
    config = configs[name]
    model = FirstQwen(config, save_first_qwen(tmp_path, config, rounded=True))
    ops = CudaTowerOps("bfloat16")
    tower, _ = tower_on(ops, tmp_path)
    rng = np.random.default_rng(0)
    if name == "qwen_vl":
        side, count = config["visual"]["image_size"], config["visual"]["n_queries"]
        tiles = rng.standard_normal((3, 3, side, side), np.float32)
        wanted = torch.cat([model.rows_of_pixels(torch.from_numpy(each)) for each in tiles])
        item = TowerInput("image", tiles, 3 * count, bytes(32))
    else:
        mel = rng.standard_normal((config["audio"]["n_mels"], 74), np.float32)
        wanted = model.rows_of_spectrogram(torch.from_numpy(mel), 73)
        item = TowerInput("audio", mel, len(wanted), bytes(32), num_valid=73)

    [[rows]] = rows_of(tower.encode([item]), ops)

    assert rms(rows - wanted.numpy()) < 0.03 * wanted.numpy().std()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["qwen2_5_vl", "heads of 72"])
def test_rows_are_the_same_bits_whatever_is_seen_beside_them(name: str, tmp_path: Path) -> None:
    sight, grids = SEEING[name]
    seen_by(sight, tmp_path)
    ops = CudaTowerOps("bfloat16")
    tower, _ = tower_on(ops, tmp_path)
    inputs: list[Any] = [
        patches(sight, kind, grid) for kind, grid in grids if kind in tower.tower.kinds
    ]

    together = rows_of(tower.encode(inputs), ops)
    alone = [rows for item in inputs for rows in rows_of(tower.encode([item]), ops)]

    for beside, single in zip(together, alone, strict=True):
        for one, other in zip(beside, single, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_a_tower_is_launched_while_the_device_is_busy(name: str, tmp_path: Path) -> None:
    sight, grids = SEEING[name]
    seen_by(sight, tmp_path)
    ops = CudaTowerOps("bfloat16")
    tower, _ = tower_on(ops, tmp_path)
    inputs = [patches(sight, kind, grid) for kind, grid in grids]
    expected = rows_of(tower.encode(inputs), ops)
    before = torch.cuda.Event()

    torch.cuda._sleep(1 << 32)  # cycles: two seconds and more
    before.record()
    encodings = tower.encode(inputs)

    assert not before.query()
    for rows, others in zip(rows_of(encodings, ops), expected, strict=True):
        for one, other in zip(rows, others, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.gpu
def test_a_warm_up_leaves_nothing_to_compile(tmp_path: Path) -> None:
    from spaninfer_kernel_launch import cached_only

    sight: Sight | Hearing = SIGHTS["qwen2_5_vl"]
    assert isinstance(sight, Sight)
    seen_by(sight, tmp_path)
    ops = CudaTowerOps("bfloat16")
    tower, _ = tower_on(ops, tmp_path)

    ops.warm_up(lambda: tower.encode([patches(sight, "image", (1, 4, 4))]), lambda *_: None)

    with cached_only():
        encodings = tower.encode([patches(sight, kind, grid) for kind, grid in GRIDS])
    assert all(np.isfinite(rows).all() for (rows,) in rows_of(encodings, ops))
