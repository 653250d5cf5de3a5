"""Which tile a shape gets, and how many blocks share the work: tables."""

import pytest
from spaninfer_kernel_launch import ARCHITECTURES, ShapeError
from spaninfer_kernels_cuda.gemm.tuning import (
    CHUNK,
    Shape,
    Tile,
    check,
    choose,
    is_faster,
    launch,
)

SHARED = {
    "sm_75": 65_536,
    "sm_80": 166_912,
    "sm_90a": 232_448,
    "sm_100a": 232_448,
    "sm_120": 101_376,
}
SHAPES = [(4608, 3584), (3584, 18_944), (152_064, 3584), (896, 896), (9728, 896), (1, 8)]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("rows", [0, 1, 8, 9, 31, 64, 65, 128, 129, 256])
def test_every_shape_has_a_tile_that_its_gpu_can_hold(arch, rows):
    for outputs, inner in SHAPES:
        tile = choose(Shape(rows, outputs, inner), arch, SHARED[arch], gated=False)

        assert tile.shared_bytes <= SHARED[arch]
        assert tile.stages >= 2
        assert tile.rows <= 256
        assert tile.hopper == (arch == "sm_90a")
        assert tile.tokens in (8, 16, 32, 64, 128)


@pytest.mark.parametrize(("outputs", "inner"), SHAPES)
@pytest.mark.parametrize("rows", [1, 17, 65, 256])
def test_no_block_is_without_work_and_groups_hold_all_tokens(rows, outputs, inner):
    tile = choose(Shape(rows, outputs, inner), "sm_90a", SHARED["sm_90a"], gated=False)

    grid = launch(Shape(rows, outputs, inner), tile, 132)

    blocks, groups, _ = grid.grid
    tiles, chunks = -(-outputs // tile.rows), -(-inner // CHUNK)
    assert 1 <= blocks <= tiles * chunks
    assert blocks == tiles * tile.splits if tile.splits > 1 else blocks * groups <= 132
    assert (groups - 1) * tile.tokens < rows <= groups * tile.tokens
    assert grid.cluster == (tile.splits, 1, 1)
    assert grid.overlaps


def test_pairs_of_rows_that_end_inside_of_a_box_go_to_the_general_kernel():
    assert choose(Shape(1, 1024, 64), "sm_90a", SHARED["sm_90a"], gated=True).hopper
    assert choose(Shape(1, 1026, 64), "sm_90a", SHARED["sm_90a"], gated=False).hopper
    assert not choose(Shape(1, 1026, 64), "sm_90a", SHARED["sm_90a"], gated=True).hopper


@pytest.mark.parametrize(
    ("rows", "outputs", "inner", "tile"),
    [
        (1, 4608, 3584, Tile(8, 1, 12, hopper=True, splits=3)),
        (16, 3584, 3584, Tile(32, 1, 9, hopper=True, splits=4)),
        (64, 3584, 18_944, Tile(64, 1, 6, hopper=True, splits=4)),
        (8, 9728, 896, Tile(8, 2, 6, hopper=True, splits=2)),
        (32, 37_888, 3584, Tile(32, 3, 3, hopper=True)),
        (64, 152_064, 3584, Tile(64, 2, 9, hopper=True)),
        (256, 37_888, 3584, Tile(128, 2, 7, hopper=True)),
    ],
)
def test_few_tiles_are_split_among_clusters_and_many_shared_by_all(rows, outputs, inner, tile):
    assert choose(Shape(rows, outputs, inner), "sm_90a", SHARED["sm_90a"], gated=False) == tile


def test_beyond_64_rows_and_before_hopper_cublas_is_faster():
    assert is_faster(Shape(64, 3584, 3584), "sm_90a", gated=True)
    assert not is_faster(Shape(65, 3584, 3584), "sm_90a", gated=False)
    assert not is_faster(Shape(1, 3584, 3584), "sm_80", gated=False)


def test_no_rows_are_no_launch():
    assert launch(Shape(0, 64, 64), Tile(8, 2, 6, hopper=True), 132) is None


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (Shape(257, 64, 64), "x has 257 rows; at most 256"),
        (Shape(1, 15, 64), "the weight has 15 rows; as many for the gate as for up"),
        (Shape(1, 0, 64), "the weight has 0 rows; at least 1, at most 8388607"),
        (Shape(1, 2**23, 64), "the weight has 8388608 rows; at least 1"),
        (Shape(1, 64, 60), "rows have 60 elements; a multiple of 8, at least 8"),
        (Shape(1, 64, 0), "rows have 0 elements"),
    ],
)
def test_shapes_that_no_kernel_takes_are_refused(shape, message):
    with pytest.raises(ShapeError, match=message):
        check(shape, gated=True)
