"""GEMMs of 8-bit codes against their definition; tests without a GPU come first."""

import ml_dtypes
import numpy as np
import pytest
from spaninfer_kernel_launch import DeviceError, DTypeError, ShapeError, get_gpu, new_stream
from spaninfer_kernels_cuda import scaled_gemm
from spaninfer_kernels_cuda.gemm.wide import Wide, band_of, fill_wide, units_of
from spaninfer_kernels_cuda.scaled_gemm import Codes, Shape, Tile
from spaninfer_op_reference import block_scaled_linear, gated, scaled_linear

FP8, INT8, BLOCKS = Codes("fp8"), Codes("int8"), Codes("fp8", "blocks")
KINDS = pytest.mark.parametrize("codes", [FP8, INT8, BLOCKS], ids=["fp8", "int8", "blocks"])
E4M3 = ml_dtypes.float8_e4m3fn
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SHARED_BYTES = 232_448  # of a block on Hopper
_INT8_ONE = 40


def test_the_variant_carries_the_codes_and_what_shares_a_scale():
    variant = scaled_gemm.variant_for(Tile(8, 2, 4, hopper=False), np.float16, codes=BLOCKS)

    assert str(variant) == (
        "gemm[ACT= GATED=0 GROUPS=2 OPERAND=e4m3 SCALES=blocks STAGES=4 T=half TOKENS=8]"
    )
    assert "sm_75" in variant.architectures


def test_what_does_not_fit_is_named():
    def product(rows=3, outputs=32, inner=256, codes=np.int8, scales=None, **given):
        x, weight = np.zeros((rows, inner), codes), np.zeros((outputs, inner), codes)
        shapes = scales or ((rows,), (outputs,))
        x_scales, weight_scales = (np.zeros(shape, np.float32) for shape in shapes)
        given |= dict(x_scales=x_scales, weight_scales=weight_scales, dtype=np.float16)
        scaled_gemm.scaled_gemm(x, weight, **given)

    with pytest.raises(DeviceError, match="x lies in cpu memory"):
        product()
    with pytest.raises(DTypeError, match="x holds float16, but codes are int8, float8_e4m3fn"):
        product(codes=np.float16)
    with pytest.raises(ShapeError, match="rows have 24 codes; a multiple of 16, at least 16"):
        product(inner=24)
    with pytest.raises(ShapeError, match="15 rows; as many for the gate as for up"):
        product(outputs=15, gate="silu")
    with pytest.raises(ShapeError, match="weight_scales: axis 0 is 31, but the kernel needs 32"):
        product(scales=((3,), (31,)))
    with pytest.raises(ShapeError, match="x_scales: axis 0 is 3, but the kernel needs 2"):
        product(scales=((3, 3), (1, 2)), codes=E4M3)
    with pytest.raises(ShapeError, match="weight_scales: axis 0 is 1, but the kernel needs 2"):
        product(scales=((2, 3), (1, 2)), codes=E4M3, gate="silu")
    with pytest.raises(DTypeError, match="scales of blocks are those of fp8"):
        product(scales=((2, 3), (1, 2)))
    with pytest.raises(DTypeError, match="bias holds float32, but the kernel needs float16"):
        product(bias=np.zeros(32, np.float32))


@pytest.mark.gpu
@KINDS
@pytest.mark.parametrize("gate", [None, "silu"])
@pytest.mark.parametrize("rows", [1, 3, 17, 64, 65, 129, 300])
@pytest.mark.parametrize(("outputs", "inner"), [(464, 1040), (1168, 272), (52, 3584)])
def test_it_is_its_definition(on_gpu, codes, gate, rows, outputs, inner):
    arrays = arguments(codes, rows, outputs, inner, gate)

    y = call(on_gpu, arrays, gate)

    check(y, codes, arrays, gate)


@pytest.mark.gpu
@KINDS
@pytest.mark.parametrize("rows", [5, 200])
def test_bias_and_residual_are_added_before_rounding_and_out_may_be_the_residual(
    on_gpu, codes, rows
):
    arrays = arguments(codes, rows, 320, 512)
    bias, residual = (normal(shape).astype(np.float16) for shape in ((320,), (rows, 320)))
    out = on_gpu.put(residual)

    call(on_gpu, arrays, bias=on_gpu.put(bias), residual=out, out=out)

    check(on_gpu.get(out), codes, arrays, bias=bias, residual=residual)


@pytest.mark.gpu
@KINDS
@pytest.mark.parametrize("gate", [None, "gelu_tanh"])
def test_every_tile_is_right_and_gives_the_same_bits_again(on_gpu, codes, gate):
    gpu = get_gpu()
    for tile in scaled_gemm.tuning.every_tile(codes):
        if getattr(tile, "hopper", True) and gpu.arch != "sm_90a":
            continue
        if tile.shared_bytes > gpu.shared_bytes:
            continue
        rows = 2 * tile.tokens - 5 if isinstance(tile, Wide) else tile.tokens - 3
        arrays = arguments(codes, rows, 464, 2064, gate)
        step = scaled_gemm.prepare(
            Shape(rows, 464, 2064), codes, dtype=BFLOAT16, gpu=gpu, gate=gate, tile=tile
        )

        first, second = run(on_gpu, step, arrays, times=2)

        check(first, codes, arrays, gate)
        assert (first == second).all(), tile


@pytest.mark.gpu
def test_rows_of_several_bands_are_right(on_gpu):
    gpu = get_gpu()
    if gpu.arch != "sm_90a":
        pytest.skip("bands are those of wide.cu")
    rows, outputs, inner = 1500, 424, 18_944
    tile = fill_wide(Wide(2, 1, 128, 0), SHARED_BYTES)
    assert band_of(rows, inner, tile) < -(-rows // tile.tokens)
    arrays = arguments(FP8, rows, outputs, inner)
    step = scaled_gemm.prepare(Shape(rows, outputs, inner), FP8, dtype=BFLOAT16, gpu=gpu, tile=tile)

    (y,) = run(on_gpu, step, arrays)

    check(y, FP8, arrays)


@pytest.mark.gpu
@KINDS
def test_tiles_that_a_block_takes_in_turn_have_scales_of_their_own(on_gpu, codes):
    """K is short, so that warpgroups are soon a tile apart."""
    gpu = get_gpu()
    if gpu.arch != "sm_90a":
        pytest.skip("blocks take several tiles in wide.cu")
    rows, outputs, inner = 1200, 8200, 144
    arrays = arguments(codes, rows, outputs, inner)
    for tile in scaled_gemm.tuning.every_tile(codes):
        if not isinstance(tile, Wide) or tile.splits > 1:
            continue
        assert units_of(rows, outputs, tile) > 2 * gpu.sm_count
        shape = Shape(rows, outputs, inner)
        step = scaled_gemm.prepare(shape, codes, dtype=BFLOAT16, gpu=gpu, tile=tile)

        (y,) = run(on_gpu, step, arrays)

        check(y, codes, arrays)


@pytest.mark.gpu
@KINDS
def test_with_one_tile_a_row_is_the_same_bits_alone_and_among_others(on_gpu, codes):
    gpu = get_gpu()
    x, weight, x_scales, weight_scales = arguments(codes, 60, 1000, 3584)
    few = Tile(64, 2, 3, hopper=gpu.arch == "sm_90a")
    tiles = [few, fill_wide(Wide(2, 1, 128, 0), SHARED_BYTES)] if few.hopper else [few]

    def product(rows, tile):
        of_rows = x_scales[..., :rows]
        step = scaled_gemm.prepare(
            Shape(rows, 1000, 3584), codes, dtype=BFLOAT16, gpu=gpu, tile=tile
        )
        return run(on_gpu, step, (x[:rows], weight, of_rows, weight_scales))[0]

    for tile in tiles:
        among_others = product(60, tile)
        assert (product(1, tile)[0] == among_others[0]).all()
        assert (product(23, tile) == among_others[:23]).all()


@pytest.mark.gpu
def test_sums_of_int8_are_exact(on_gpu):
    x, weight = np.full((3, 18_944), 127, np.int8), np.full((64, 18_944), 127, np.int8)
    ones = np.ones(3, np.float32), np.full(64, 2.0**-28, np.float32)

    y = call(on_gpu, (x, weight, *ones))

    assert (y == np.float16(18_944 * 127**2 * 2.0**-28)).all()


@pytest.mark.gpu
@KINDS
def test_no_rows_are_no_launch(on_gpu, codes):
    y = call(on_gpu, arguments(codes, 0, 48, 64))

    assert y.shape == (0, 48)


def call(on_gpu, arrays, gate=None, out=None, **added):
    x, weight, x_scales, weight_scales = map(on_gpu.put, arrays)
    y = scaled_gemm.scaled_gemm(
        *(x, weight),
        **dict(x_scales=x_scales, weight_scales=weight_scales, dtype=np.float16),
        **dict(gate=gate, out=out, **added),
    )
    return on_gpu.get(y)


def run(on_gpu, step, arrays, times=1):
    """The results of launches of `step`, each written over NaN."""
    x, weight, x_scales, weight_scales = map(on_gpu.put, arrays)
    workspace = on_gpu.put(np.zeros(step.workspace_bytes, np.uint8))
    columns = step.shape.outputs // 2 if step.gated else step.shape.outputs
    results = []
    with get_gpu().current(), new_stream() as stream:
        for _ in range(times):
            out = on_gpu.put(np.full((step.shape.rows, columns), np.nan, BFLOAT16))
            on_gpu.wait()
            step.launch(
                *(x, weight),
                **dict(out=out, workspace=workspace, stream=stream),
                **dict(x_scales=x_scales, weight_scales=weight_scales),
            )
            on_gpu.wait()
            results.append(on_gpu.get(out))
    return results


def arguments(codes, rows, outputs, inner, gate=None):
    """x, weight, and scales that differ for every row or block."""
    shapes = (rows, inner), (outputs, inner)
    x, weight = (normal(shape, seed) for seed, shape in enumerate(shapes))
    blocks = -(-inner // 128)
    scales = (rows,), (outputs,)
    if codes.scales == "blocks":
        of_rows = 2 * -(-outputs // 256) if gate else -(-outputs // 128)
        scales = (blocks, rows), (of_rows, blocks)
    draw = np.random.default_rng(7)
    x_scales, weight_scales = (draw.uniform(0.5, 2, shape).astype(np.float32) for shape in scales)
    weight_scales /= inner**0.5 * (1 if codes.code == "fp8" else _INT8_ONE**2)
    return coded(x, codes), coded(weight, codes), x_scales, weight_scales


def coded(x, codes):
    if codes.code == "fp8":
        return x.astype(E4M3)
    return np.clip(np.rint(_INT8_ONE * x), -127, 127).astype(np.int8)


def normal(shape, seed=3):
    return np.random.default_rng(seed).standard_normal(shape)


def check(y, codes, arrays, gate=None, bias=None, residual=None):
    """Every number within 2^-8 of the sum of its terms' sizes."""
    expected, size = (
        _product(codes, [each(array.astype(np.float64)) for array in arrays], gate, bias, each)
        for each in (np.array, np.abs)
    )
    if gate:
        half = expected.shape[1] // 2
        parts = expected[:, :half], expected[:, half:]
        size = size[:, :half] * np.abs(parts[1]) + np.abs(parts[0]) * size[:, half:]
        expected = gated(*parts, gate)
    if residual is not None:
        expected, size = expected + residual, size + np.abs(residual.astype(np.float64))
    assert (np.abs(y.astype(np.float64) - expected) <= 2**-8 * size).all()


def _product(codes, arrays, gate, bias, each):
    added = None if bias is None else each(bias.astype(np.float64))
    if codes.scales == "rows":
        return scaled_linear(*arrays, added)
    return block_scaled_linear(*arrays, added, gated=gate is not None)
