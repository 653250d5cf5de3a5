"""Tiles of GEMMs of 8-bit codes: sizes that fit, and how few variants cover all numbers of rows."""

import pytest
from spaninfer_kernels_cuda.gemm.wide import Wide, launch_wide, units_of
from spaninfer_kernels_cuda.scaled_gemm import Codes, Shape, Tile, invariant_tile, rows_of_tiles
from spaninfer_kernels_cuda.scaled_gemm.tuning import choose, every_tile

SHARED_BYTES = 227 * 1024  # of an H200
SMS = 132
KINDS = [Codes("fp8"), Codes("int8"), Codes("fp8", "blocks")]
# Outputs, K and whether half of them are gates, of models from 0.5 to 32 billion parameters.
PRODUCTS = [
    *((1152, 896, False), (9728, 896, True), (896, 4864, False), (4608, 3584, False)),
    *((37_888, 3584, True), (3584, 18_944, False), (152_064, 3584, False), (5120, 27_648, False)),
    *((72, 64, False), (264, 80, True), (100, 64, False)),
]
ROWS = (1, 8, 9, 64, 65, 100, 256, 257, 511, 512, 513, 1000, 4000, 8192)


def chosen(rows, outputs, inner, codes, gated, arch="sm_90a"):
    return choose(Shape(rows, outputs, inner), codes, arch, SHARED_BYTES, gated=gated)


@pytest.mark.parametrize("codes", KINDS, ids=str)
@pytest.mark.parametrize(("outputs", "inner", "gated"), PRODUCTS)
def test_tiles_fit_a_block_and_clusters_of_them_run_at_once(outputs, inner, gated, codes):
    for rows in ROWS:
        tile = chosen(rows, outputs, inner, codes, gated)

        assert tile.stages >= 2
        assert tile.shared_bytes <= SHARED_BYTES
        assert tile.splits <= -(-inner // 128)
        if isinstance(tile, Wide):
            grid = launch_wide(rows, outputs, tile, SMS)
            assert tile.splits == 1 or units_of(rows, outputs, tile) * tile.splits <= SMS
            assert grid.grid[0] % tile.splits == 0


@pytest.mark.parametrize("codes", [KINDS[0], KINDS[2]], ids=str)
@pytest.mark.parametrize(("outputs", "inner", "gated"), PRODUCTS)
def test_a_few_numbers_of_rows_have_all_tiles_of_any_number(outputs, inner, gated, codes):
    few = rows_of_tiles(outputs, inner, codes, "sm_90a", SHARED_BYTES, gated=gated)

    tiles = {chosen(rows, outputs, inner, codes, gated) for rows in few}
    assert {chosen(rows, outputs, inner, codes, gated) for rows in range(1, 700, 3)} <= tiles
    assert {chosen(rows, outputs, inner, codes, gated) for rows in range(701, 8193, 97)} <= tiles
    assert tiles <= set(every_tile(codes))


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_100a", "sm_120"])
def test_elsewhere_every_number_of_rows_has_a_tile_of_the_general_kernel(arch):
    for rows in ROWS:
        tile = chosen(rows, 4608, 3584, KINDS[0], False, arch)

        assert isinstance(tile, Tile)
        assert not tile.hopper


def test_gates_without_whole_pairs_of_eight_rows_go_to_the_general_kernel():
    assert not chosen(300, 264, 80, KINDS[0], True).hopper


def test_one_tile_serves_any_number_of_rows_on_hopper_alone():
    tile = invariant_tile("sm_90a", SHARED_BYTES)

    assert tile.splits == 1
    assert tile in set(every_tile(KINDS[0])) & set(every_tile(KINDS[2]))
    assert invariant_tile("sm_80", SHARED_BYTES) is None
