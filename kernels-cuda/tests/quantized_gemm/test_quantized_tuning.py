"""Tiles of quantised GEMMs by shape: all variants exist, and fit into shared memory."""

import ml_dtypes
import numpy as np
import pytest
from spaninfer_kernel_launch import ShapeError
from spaninfer_kernels_cuda.gemm.tuning import Shape
from spaninfer_kernels_cuda.quantized_gemm import (
    QuantizedFormat,
    invariant_tile,
    is_faster,
    rows_of_tiles,
)
from spaninfer_kernels_cuda.quantized_gemm.tuning import check, choose, launch

SHARED_BYTES = 232_448  # of a block on Hopper
SMS = 132
CODED = QuantizedFormat(4, 128, activations="e4m3")
FORMATS = [
    *(QuantizedFormat(4, 128), QuantizedFormat(8, 64, "minimum"), QuantizedFormat(4, 16)),
    *(CODED, QuantizedFormat(4, 32, activations="e4m3")),
]
# Outputs, K and whether half of them are gates, of models from 0.5 to 32 billion parameters.
PRODUCTS = [
    *((1152, 896, False), (9728, 896, True), (896, 4864, False), (4608, 3584, False)),
    *((37_888, 3584, True), (3584, 18_944, False), (152_064, 3584, False), (72, 64, False)),
]


def chosen(rows, product, format=FORMATS[0]):
    outputs, inner, gated = product
    shape = Shape(rows, outputs, inner)
    return choose(shape, format, "sm_90a", SHARED_BYTES, gated=gated)


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_a_few_numbers_of_rows_have_the_kernels_of_any_number(product, format):
    def kernel(rows):
        tile = chosen(rows, product, format)
        return tile.tokens, tile.groups, tile.blocks, tile.batch, tile.splits, tile.stages

    outputs, inner, gated = product
    few = rows_of_tiles(outputs, inner, format, "sm_90a", SHARED_BYTES, gated=gated)

    kernels = {kernel(rows) for rows in few}
    assert {kernel(rows) for rows in (*range(1, 600, 7), *range(600, 8193, 501))} <= kernels
    assert len(few) == len(kernels) <= 16


@pytest.mark.parametrize("rows", [1, 8, 16, 64])
def test_of_blocks_with_equal_shares_an_sm_holds_one_beside_one_of_the_next_kernel(rows):
    of_an_sm, reserved = 228 * 1024, 1024  # bytes; those that every block takes
    few, next_one = (
        launch(
            Shape(rows, *sizes),
            choose(Shape(rows, *sizes), FORMATS[0], "sm_90a", SHARED_BYTES, gated=False),
            FORMATS[0],
            SMS,
        )
        for sizes in ((37_888, 3584), (3584, 18_944))
    )

    assert few.grid == (SMS, 1, 1)
    assert 2 * (few.shared_bytes + reserved) > of_an_sm
    if rows <= 16:
        assert few.shared_bytes + next_one.shared_bytes + 2 * reserved <= of_an_sm


@pytest.mark.parametrize("format", [FORMATS[0], CODED], ids=str)
@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_clusters_and_blocks_with_tiles_of_their_own_run_at_once(product, format):
    outputs, inner, _ = product
    for rows in (65, 96, 128, 160, 200, 256, 300, 512, 1000, 4000):
        tile = chosen(rows, product, format)
        x, y, _ = launch(Shape(rows, outputs, inner), tile, format, SMS).grid

        assert x * y <= SMS
        assert tile.splits <= -(-inner // 128)
        assert tile.per_sm or x == -(-outputs // tile.rows)
        assert tile.stages >= 3 or tile.splits == 1


def test_rows_beyond_the_last_are_few():
    """A row of a tile costs the same whether anybody has it: 320 rows are not two tiles of 256."""
    for rows in (96, 160, 192, 320, 384):
        tile = chosen(rows, (37_888, 3584, True))

        assert -rows % tile.tokens == 0


@pytest.mark.parametrize("rows", [1, 16, 64, 65, 256, 4096])
def test_scales_of_weights_for_activations_in_codes_go_to_sums(rows):
    """In e4m3 they would be rounded to four bits."""
    for product in PRODUCTS:
        assert chosen(rows, product, CODED).fold


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_of_a_tile_for_batch_invariance_a_block_has_whole_rows(arch):
    for outputs, gated in ((4608, False), (37_888, True), (72, True)):
        tile = invariant_tile(outputs, CODED, arch, SHARED_BYTES, gated=gated)
        grid = launch(Shape(300, outputs, 3584), tile, CODED, SMS).grid

        assert grid == (-(-outputs // tile.rows), -(-300 // tile.tokens), 1)
        assert tile.splits == 1
        assert tile.hopper == (arch == "sm_90a" and outputs % 16 == 0)


def test_codes_for_activations_in_codes_are_multiplied_whatever_the_rows():
    for arch in ("sm_80", "sm_90a"):
        for rows in (1, 100, 65_536):
            assert is_faster(Shape(rows, 4608, 3584), CODED, np.float16, arch, gated=False)


def test_rows_of_codes_come_in_whole_copies():
    check(Shape(3, 64, 272), CODED, gated=False)
    with pytest.raises(ShapeError, match="rows have 264 elements; a multiple of 16, at least 16"):
        check(Shape(3, 64, 264), CODED, gated=False)


def test_codes_that_become_numbers_in_few_instructions_are_multiplied_for_any_rows():
    shape, bfloat16 = Shape(4096, 37_888, 3584), ml_dtypes.bfloat16

    assert is_faster(shape, QuantizedFormat(4, 128), bfloat16, "sm_90a", gated=True)
    assert is_faster(shape, QuantizedFormat(4, None), np.float16, "sm_90a", gated=True)
    assert not is_faster(shape, QuantizedFormat(4, 128), np.float16, "sm_90a", gated=True)
    assert not is_faster(shape, QuantizedFormat(8, 128), bfloat16, "sm_90a", gated=True)
    assert not is_faster(shape, QuantizedFormat(4, 32, "minimum"), bfloat16, "sm_90a", gated=True)
    assert not is_faster(shape, QuantizedFormat(4, 128), bfloat16, "sm_80", gated=True)


def test_more_results_than_the_kernel_counts_are_left_to_others():
    shape = Shape(8192, 300_000, 3584)

    assert not is_faster(shape, QuantizedFormat(4, 128), ml_dtypes.bfloat16, "sm_90a", gated=False)
