"""Small-M GEMM against its definition; tests without a GPU come first."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from spaninfer_kernel_launch import (
    DeviceError,
    DTypeError,
    ShapeError,
    captured,
    get_gpu,
    new_stream,
)
from spaninfer_kernels_cuda import gemm
from spaninfer_kernels_cuda.activation import ACTS
from spaninfer_kernels_cuda.gemm.tall import Tall, choose_tall
from spaninfer_kernels_cuda.gemm.tuning import FLAGS, Shape, Tile
from spaninfer_kernels_cuda.gemm.wide import Wide, fill_wide
from spaninfer_op_reference import ACTIVATIONS, gated, linear, relative_error, tolerance

DTYPES = [np.float16, ml_dtypes.bfloat16]
NARROW, HOPPER = Tile(8, 2, 4, hopper=False), Tile(64, 2, 4, hopper=True)
SHARED_BYTES = 232_448  # of a block on Hopper
WIDE = [
    fill_wide(Wide(*sizes), SHARED_BYTES)
    for sizes in [
        (2, 1, 144, 0),
        (2, 1, 64, 0, 2),
        (2, 1, 128, 0, 4),
        (3, 1, 144, 0),
        (3, 1, 96, 0, 2),
        (2, 2, 144, 0),
        (2, 2, 112, 0, 4),
    ]
]
TALL = [Tall(144, 5), Tall(208, 4), Tall(256, 4)]


def test_the_variant_carries_the_tile_and_the_gate():
    variant = gemm.variant_for(NARROW, ml_dtypes.bfloat16, "silu")

    assert str(variant) == (
        "gemm[ACT=silu GATED=1 GROUPS=2 OPERAND=bfloat16 SCALES=none STAGES=4 T=bfloat16 TOKENS=8]"
    )
    assert "sm_75" not in variant.architectures


def test_tma_and_wgmma_are_for_hopper_alone():
    assert gemm.variant_for(HOPPER, np.float16).architectures == ("sm_90a",)
    assert gemm.variant_for(WIDE[0], np.float16).architectures == ("sm_90a",)
    assert gemm.variant_for(TALL[0], np.float16).architectures == ("sm_90a",)


def test_types_and_gates_without_a_kernel_are_refused():
    with pytest.raises(DTypeError, match="float32; 16-bit floats only"):
        gemm.variant_for(NARROW, np.float32)
    with pytest.raises(ShapeError, match="no activation 'swish'; there are silu, gelu"):
        gemm.variant_for(NARROW, np.float16, "swish")
    with pytest.raises(ShapeError, match="no activation 'swish'; there are silu, gelu"):
        gemm.variant_for(NARROW, np.float16, act="swish")
    with pytest.raises(ShapeError, match="gate silu and act gelu; a GEMM has one of them"):
        gemm.variant_for(NARROW, np.float16, "silu", "gelu")


def test_arrays_in_host_memory_are_refused():
    x, weight = np.zeros((3, 64), np.float16), np.zeros((16, 64), np.float16)

    with pytest.raises(DeviceError, match="x lies in cpu memory"):
        gemm.gemm(x, weight)


def test_arguments_that_do_not_fit_are_named():
    x, weight = np.zeros((3, 64), np.float16), np.zeros((16, 72), np.float16)

    with pytest.raises(ShapeError, match="weight: K is 72, but x has K = 64"):
        gemm.gemm(x, weight)
    with pytest.raises(ShapeError, match="residual: axis 1 is 16, but the kernel needs 8"):
        gemm.gemm(x, weight[:, :64].copy(), gate="silu", residual=np.zeros((3, 16), np.float16))
    with pytest.raises(ShapeError, match="15 rows; as many for the gate as for up"):
        gemm.gemm(x, weight[:15, :64].copy(), gate="silu")
    with pytest.raises(DTypeError, match="weight holds float32, but the kernel needs float16"):
        gemm.gemm(x, np.zeros((16, 64), np.float32))
    with pytest.raises(ShapeError, match="rows have 12 elements; a multiple of 8"):
        gemm.gemm(x[:, :12].copy(), weight[:, :12].copy())
    with pytest.raises(ShapeError, match="x must be contiguous"):
        gemm.gemm(np.zeros((64, 16), np.float16).T, np.zeros((16, 64), np.float16))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 47, 50, 64, 65, 128, 300])
@pytest.mark.parametrize(("outputs", "inner"), [(1, 8), (1153, 904), (130, 4096)])
def test_it_is_its_definition(on_gpu, dtype, rows, outputs, inner):
    check_definition(on_gpu, dtype, rows, outputs, inner)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("rows", [65, 96, 127, 128, 129, 200, 255, 256, 257, 384, 511, 512])
@pytest.mark.parametrize(("outputs", "inner"), [(1160, 72), (2632, 2056)])
def test_of_many_rows_it_is_its_definition(on_gpu, dtype, rows, outputs, inner):
    check_definition(on_gpu, dtype, rows, outputs, inner)


@pytest.mark.gpu
@pytest.mark.parametrize("gate", ACTS)
@pytest.mark.parametrize("rows", [3, 70, 200])
@pytest.mark.parametrize(("columns", "inner"), [(1, 16), (601, 136), (1024, 1000)])
def test_gates_are_applied_to_the_upper_half_of_the_weight(on_gpu, gate, rows, columns, inner):
    x, weight, bias, _ = arguments(rows, 2 * columns, inner, columns, np.float16)

    y = gemm.gemm(on_gpu.put(x), on_gpu.put(weight), bias=on_gpu.put(bias), gate=gate)

    both = linear(wide(x), wide(weight), wide(bias))
    assert near(on_gpu.get(y), gated(both[:, :columns], both[:, columns:], gate), np.float16)


@pytest.mark.gpu
@pytest.mark.parametrize("act", ["gelu", "quick_gelu"])
@pytest.mark.parametrize("rows", [3, 70, 400])
@pytest.mark.parametrize(("outputs", "inner"), [(3, 16), (1160, 136)])
def test_an_activation_is_applied_to_every_result_before_the_residual(
    on_gpu, act, rows, outputs, inner
):
    x, weight, bias, residual = arguments(rows, outputs, inner, outputs, np.float16)

    y = gemm.gemm(
        *(on_gpu.put(x), on_gpu.put(weight)),
        bias=on_gpu.put(bias),
        act=act,
        residual=on_gpu.put(residual),
    )

    expected = ACTIVATIONS[act](linear(wide(x), wide(weight), wide(bias))) + wide(residual)
    assert near(on_gpu.get(y), expected, np.float16)


@pytest.mark.gpu
@pytest.mark.parametrize(("gate", "act"), [(None, None), ("silu", None), (None, "gelu_tanh")])
@pytest.mark.parametrize("rows", [1, 513, 3000])
@pytest.mark.parametrize("tile", gemm.every_many(SHARED_BYTES), ids=str)
def test_any_number_of_rows_is_right_and_no_row_depends_on_their_number(
    on_gpu, tile, rows, gate, act
):
    if get_gpu().arch != "sm_90a":
        pytest.skip("needs Hopper")
    dtype, columns = ml_dtypes.bfloat16, 584 if gate else 1168
    x, weight, bias, residual = arguments(rows, 1168, 520, columns, dtype)
    options = dict(dtype=dtype, gpu=get_gpu(), gate=gate, act=act, tile=tile)
    whole, part = (gemm.prepare(Shape(n, 1168, 520), **options) for n in (rows, rows // 2))

    [y] = run(on_gpu, whole, x, weight, bias=bias, residual=residual)
    [half] = run(*(on_gpu, part, x[: rows // 2], weight), bias=bias, residual=residual[: rows // 2])

    expected = linear(wide(x), wide(weight), wide(bias))
    if gate:
        expected = gated(expected[:, :584], expected[:, 584:], gate)
    if act:
        expected = ACTIVATIONS[act](expected)
    assert near(y, expected + wide(residual), dtype)
    assert (y[: rows // 2] == half).all()


@pytest.mark.gpu
@pytest.mark.parametrize("hopper", [False, True], ids=["general", "hopper"])
@pytest.mark.parametrize("gate", [None, "silu"])
@pytest.mark.parametrize("sm_count", [1, 2, 5, 96, 132])
def test_however_many_blocks_share_the_work_the_result_is_right(on_gpu, hopper, gate, sm_count):
    gpu = get_gpu()
    if hopper and gpu.arch != "sm_90a":
        pytest.skip("needs Hopper")
    x, weight, _, _ = arguments(13, 1040, 712, 1040, np.float16)
    shape, tile = Shape(13, 1040, 712), Tile(16, 2, 3, hopper=hopper)
    fewer = dataclasses.replace(gpu, sm_count=sm_count)
    step = gemm.prepare(shape, dtype=np.float16, gpu=fewer, gate=gate, tile=tile)

    [y] = run(on_gpu, step, x, weight)

    expected = linear(wide(x), wide(weight))
    if gate:
        expected = gated(expected[:, :520], expected[:, 520:], gate)
    assert near(y, expected, np.float16)


@pytest.mark.gpu
@pytest.mark.parametrize("gate", [None, "gelu"])
@pytest.mark.parametrize("splits", [2, 3, 7, 8])
@pytest.mark.parametrize("rows", [5, 61, 128])
def test_however_many_blocks_of_a_cluster_share_a_tile_the_result_is_right(
    on_gpu, gate, splits, rows
):
    if get_gpu().arch != "sm_90a":
        pytest.skip("needs Hopper")
    x, weight, bias, residual = arguments(rows, 1040, 520, 520 if gate else 1040, np.float16)
    shape = Shape(rows, 1040, 520)
    tokens = next(size for size in (8, 64, 128) if size >= rows)
    tile = Tile(tokens, 2, 4, hopper=True, splits=splits)
    step = gemm.prepare(shape, dtype=np.float16, gpu=get_gpu(), gate=gate, tile=tile)

    [y] = run(on_gpu, step, x, weight, bias=bias, residual=residual)

    expected = linear(wide(x), wide(weight), wide(bias))
    if gate:
        expected = gated(expected[:, :520], expected[:, 520:], gate)
    assert near(y, expected + wide(residual), np.float16)


@pytest.mark.gpu
@pytest.mark.parametrize("gate", [None, "silu"])
@pytest.mark.parametrize("rows", [65, 129, 511])
@pytest.mark.parametrize("tile", [*WIDE, *TALL], ids=str)
def test_many_rows_of_x_are_right_with_every_tile(on_gpu, tile, rows, gate):
    if get_gpu().arch != "sm_90a":
        pytest.skip("needs Hopper")
    dtype = ml_dtypes.bfloat16
    x, weight, bias, residual = arguments(rows, 1168, 904, 584 if gate else 1168, dtype)
    step = gemm.prepare(Shape(rows, 1168, 904), dtype=dtype, gpu=get_gpu(), gate=gate, tile=tile)

    first, second = run(on_gpu, step, x, weight, bias=bias, residual=residual, times=2)

    expected = linear(wide(x), wide(weight), wide(bias))
    if gate:
        expected = gated(expected[:, :584], expected[:, 584:], gate)
    assert near(first, expected + wide(residual), dtype)
    assert (first == second).all()


@pytest.mark.gpu
@pytest.mark.parametrize("gate", [None, "silu"])
@pytest.mark.parametrize(("rows", "outputs"), [(1, 192), (300, 6400), (416, 37_888), (512, 640)])
def test_blocks_take_one_tile_after_another_where_tiles_are_tall(on_gpu, rows, outputs, gate):
    if get_gpu().arch != "sm_90a":
        pytest.skip("needs Hopper")
    dtype, columns = ml_dtypes.bfloat16, outputs // 2 if gate else outputs
    x, weight, bias, residual = arguments(rows, outputs, 200, columns, dtype)
    tile, shape = choose_tall(rows, SHARED_BYTES), Shape(rows, outputs, 200)
    step = gemm.prepare(shape, dtype=dtype, gpu=get_gpu(), gate=gate, tile=tile)

    first, second = run(on_gpu, step, x, weight, bias=bias, residual=residual, times=2)

    expected = linear(wide(x), wide(weight), wide(bias))
    if gate:
        expected = gated(expected[:, :columns], expected[:, columns:], gate)
    assert near(first, expected + wide(residual), dtype)
    assert (first == second).all()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [9, 64])
@pytest.mark.parametrize("gate", [None, "silu"])
def test_a_tile_begins_with_what_the_block_before_has_left_of_it(on_gpu, rows, gate):
    gpu = get_gpu()
    if gpu.arch != "sm_90a":
        pytest.skip("needs Hopper")
    outputs = 192 * 200  # more tiles than SMs, and no multiple: blocks share some
    columns = outputs // 2 if gate else outputs
    x, weight, _, residual = arguments(rows, outputs, 520, columns, np.float16)
    tile = Tile(64, 3, 4, hopper=True)
    step = gemm.prepare(Shape(rows, outputs, 520), dtype=np.float16, gpu=gpu, gate=gate, tile=tile)

    results = run(on_gpu, step, x, weight, residual=residual, times=10)

    expected = linear(wide(x), wide(weight))
    if gate:
        expected = gated(expected[:, :columns], expected[:, columns:], gate)
    assert near(results[0], expected + wide(residual), np.float16)
    assert all((results[0] == other).all() for other in results)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [5, 130])
def test_rows_of_x_may_be_strided_and_out_may_be_the_residual(on_gpu, rows):
    x, weight, _, residual = arguments(rows, 320, 256, 320, np.float16)
    wider = on_gpu.put(np.concatenate([np.full_like(x, np.nan), x, np.full_like(x, np.nan)], 1))
    out = on_gpu.put(
        np.concatenate([np.full((1, 320), np.nan), residual, residual[:1]]).astype("e")
    )

    inside = out[1 : rows + 1]

    gemm.gemm(wider[:, 256:512], on_gpu.put(weight), residual=inside, out=inside)

    got = on_gpu.get(out)
    assert near(got[1:-1], linear(wide(x), wide(weight)) + wide(residual), np.float16)
    assert np.isnan(got[0]).all()
    assert (got[-1] == residual[0]).all()


@pytest.mark.gpu
def test_no_rows_are_no_launch(on_gpu):
    x, weight = np.zeros((0, 64), np.float16), np.zeros((40, 64), np.float16)

    y = gemm.gemm(on_gpu.put(x), on_gpu.put(weight))

    assert on_gpu.get(y).shape == (0, 40)


@pytest.mark.gpu
def test_results_are_the_same_bits_every_time_and_the_workspace_stays_fit(on_gpu):
    x, weight, _, _ = arguments(33, 3584, 896, 3584, np.float16)
    step = gemm.prepare(Shape(33, 3584, 896), dtype=np.float16, gpu=get_gpu())

    first, *others = run(on_gpu, step, x, weight, times=20)

    assert all((first == other).all() for other in others)


@pytest.mark.gpu
def test_with_one_tile_a_row_is_the_same_bits_alone_and_among_others(on_gpu):
    gpu = get_gpu()
    x, weight, _, _ = arguments(64, 1000, 3584, 1000, np.float16)
    tile = Tile(64, 2, 3, hopper=gpu.arch == "sm_90a")

    def product(rows):
        shape = Shape(rows, 1000, 3584)
        step = gemm.prepare(shape, dtype=np.float16, gpu=gpu, tile=tile)
        return run(on_gpu, step, x[:rows], weight)[0]

    among_others = product(64)

    assert (product(1)[0] == among_others[0]).all()
    assert (product(23) == among_others[:23]).all()


@pytest.mark.gpu
def test_prepared_and_captured_in_a_chain_it_runs_on_whatever_the_input_then_holds(on_gpu):
    gpu = get_gpu()
    x, first, _, _ = arguments(9, 640, 512, 640, np.float16)
    _, second, _, _ = arguments(9, 512, 640, 512, np.float16, seed=1)
    up = gemm.prepare(Shape(9, 640, 512), dtype=np.float16, gpu=gpu)
    down = gemm.prepare(Shape(9, 512, 640), dtype=np.float16, gpu=gpu)
    given, between = on_gpu.put(x), on_gpu.put(np.zeros((9, 640), np.float16))
    weights = on_gpu.put(first), on_gpu.put(second)
    fit = max(up.workspace_bytes, down.workspace_bytes)
    workspace = on_gpu.put(np.zeros(fit, np.uint8))

    def launch(stream, _):
        up.launch(given, weights[0], out=between, workspace=workspace, stream=stream)
        down.launch(
            *(between, weights[1]),
            **dict(out=given, residual=given, workspace=workspace, stream=stream),
        )

    with gpu.current(), new_stream() as stream, captured(stream, launch, 3) as replay:
        on_gpu.wait()
        replay()
        on_gpu.wait()

    expected = x
    for _ in range(3):
        middle = linear(wide(expected), wide(first)).astype(np.float16)
        expected = (linear(wide(middle), wide(second)) + wide(expected)).astype(np.float16)
    assert relative_error(wide(on_gpu.get(given)), wide(expected)) <= 3 * tolerance("float16")


def check_definition(on_gpu, dtype, rows, outputs, inner):
    x, weight, bias, residual = arguments(rows, outputs, inner, outputs, dtype)

    y = gemm.gemm(
        *(on_gpu.put(x), on_gpu.put(weight)),
        bias=on_gpu.put(bias),
        residual=on_gpu.put(residual),
    )

    expected = linear(wide(x), wide(weight), wide(bias)) + wide(residual)
    assert near(on_gpu.get(y), expected, dtype)


def run(on_gpu, step, x, weight, times=1, **added):
    """The results of launches of `step`, each written over NaN."""
    given, loaded = on_gpu.put(x), on_gpu.put(weight)
    added = {name: on_gpu.put(array) for name, array in added.items()}
    workspace = on_gpu.put(np.zeros(step.workspace_bytes, np.uint8))
    columns = len(weight) // 2 if step.gated else len(weight)
    results = []
    with get_gpu().current(), new_stream() as stream:
        for _ in range(times):
            out = on_gpu.put(np.full((len(x), columns), np.nan, x.dtype))
            on_gpu.wait()
            step.launch(given, loaded, out=out, workspace=workspace, stream=stream, **added)
            on_gpu.wait()
            results.append(on_gpu.get(out))
    assert not on_gpu.get(workspace)[: 4 * FLAGS].any()
    return results


def arguments(rows, outputs, inner, columns, dtype, seed=0):
    """x, weight, bias and residual of a product whose results have about the size of one."""
    draw = np.random.default_rng(seed)
    shapes = ((rows, inner), (outputs, inner), (outputs,), (rows, columns))
    spreads = (1, inner**-0.5, 1, 1)
    return tuple(
        (spread * draw.standard_normal(shape)).astype(dtype)
        for spread, shape in zip(spreads, shapes, strict=True)
    )


def wide(array):
    return array.astype(np.float64)


def near(actual, expected, dtype):
    """Is each number within the tolerance of itself, or of all where its terms have cancelled?

    Gated results have long tails: the rounding of the largest is more than the tolerance of all.
    """
    size = np.maximum(np.abs(expected), np.sqrt(np.mean(expected**2)))
    return (np.abs(wide(actual) - expected) <= tolerance(np.dtype(dtype).name) * size).all()
