"""Top-k against its definition; all but the last tests need a GPU."""

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
from spaninfer_kernels_cuda import topk
from spaninfer_op_reference import topk as defined

INF, NAN = np.inf, np.nan


def rows_of(kind, rows, length, dtype=np.float32, seed=0):
    """Rows that are hard on selection in one way or another."""
    draw = np.random.default_rng(seed)
    normal = draw.standard_normal((rows, length), dtype=np.float32)
    match kind:
        case "normal":
            x = normal
        case "rising":
            x = np.sort(normal, axis=1)
        case "falling":
            x = -np.sort(normal, axis=1)
        case "constant":
            x = np.full_like(normal, 0.25)
        case "few values":
            x = draw.integers(0, 4, normal.shape).astype(np.float32)
        case "one digit":  # all in one bin of a radix select that starts at the top
            x = 1 + normal * 1e-6
        case "one outlier":
            x = normal * 1e-30
            x[:, length // 3] = INF
        case "denormal":
            x = normal * 1e-40
        case "infinite":
            x = np.where(normal > 1, INF, np.where(normal < 0, -INF, normal))
        case "zeros":
            x = np.where(normal > 0, 0.0, -0.0)
        case "nan":
            x = np.where(normal < 1, NAN, normal)
            x[0] = NAN
            x[0, length // 2] = -INF
    return x.astype(np.float32).astype(dtype)


KINDS = [
    *("normal", "rising", "falling", "constant", "few values", "one digit"),
    *("one outlier", "denormal", "infinite", "zeros", "nan"),
]


def check(x, values, indices, k):
    """Compare with the definition, bit by bit where something is a number."""
    _, expected = defined(x.astype(np.float64), k)
    np.testing.assert_array_equal(indices, expected)
    taken = np.take_along_axis(x, expected, axis=1)
    np.testing.assert_array_equal(values.view(f"u{x.itemsize}"), taken.view(f"u{x.itemsize}"))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "length", "k"),
    [(2, 5003, 50), (3, 8192, 4096), (3, 151_936, 50), (2, 300_007, 2048)],
)
def test_any_distribution_gives_what_the_definition_says(on_gpu, kind, rows, length, k):
    x = rows_of(kind, rows, length)

    values, indices = topk.topk(on_gpu.put(x), k)

    check(x, on_gpu.get(values), on_gpu.get(indices), k)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["normal", "infinite", "zeros", "nan"])
@pytest.mark.parametrize("length", [999, 100_003])
def test_sixteen_bits_are_full_of_equal_values(on_gpu, dtype, kind, length):
    x = rows_of(kind, 4, length, dtype)

    values, indices = topk.topk(on_gpu.put(x), 100)

    check(x, on_gpu.get(values), on_gpu.get(indices), 100)


SIZES = [
    *((1, 1, 1), (7, 2, 2), (5, 31, 31), (3, 257, 256), (2, 4096, 4096), (1, 8191, 1)),
    *((1, 8193, 1), (2, 8193, 4096), (5, 17_389, 7), (256, 9001, 3), (133, 32_003, 64)),
    *((1, 1_048_583, 4096), (64, 65_537, 1000), (1, 10_000_019, 333)),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "length", "k"), SIZES)
def test_any_size_gives_what_the_definition_says(rows, length, k):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = rows_of("normal", rows, length, seed=length)

    values, indices = topk.topk(torch.from_numpy(x).cuda(), k)

    check(x, torch.from_dlpack(values).cpu().numpy(), torch.from_dlpack(indices).cpu().numpy(), k)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["normal", "constant"])
def test_the_longest_row_of_the_targets(kind):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    length, k = 1 << 27, 2048
    x = torch.randn(1, length, device="cuda") if kind == "normal" else torch.ones(1, length).cuda()

    _, indices = map(torch.from_dlpack, topk.topk(x, k))

    # The definition would sort for minutes; all that are as large as the k-th are few enough.
    if kind == "constant":
        assert indices[0].tolist() == list(range(k))
    else:
        least = torch.topk(x[0], k).values[-1]
        [candidates] = torch.nonzero(x[0] >= least, as_tuple=True)
        order = torch.sort(-x[0, candidates], stable=True).indices[:k]
        assert indices[0].tolist() == candidates[order].tolist()


@pytest.mark.gpu
@pytest.mark.parametrize(("length", "k"), [(5003, 50), (151_936, 1000)])
def test_unsorted_the_same_are_chosen_in_any_order(on_gpu, length, k):
    x = rows_of("few values", 3, length)

    values, indices = (on_gpu.get(array) for array in topk.topk(on_gpu.put(x), k, sorted=False))

    _, expected = defined(x, k)
    np.testing.assert_array_equal(np.sort(indices, axis=1), np.sort(expected, axis=1))
    np.testing.assert_array_equal(values, np.take_along_axis(x, indices, axis=1))


@pytest.mark.gpu
def test_rows_may_be_apart_and_begin_anywhere(on_gpu):
    wide = rows_of("normal", 4, 40_009)
    part = on_gpu.put(wide)[:, 3:40_001]

    values, indices = topk.topk(part, 64)

    check(np.ascontiguousarray(wide[:, 3:40_001]), on_gpu.get(values), on_gpu.get(indices), 64)


@pytest.mark.gpu
def test_where_the_bound_fails_the_whole_row_is_looked_at(on_gpu):
    x = rows_of("normal", 3, 200_003)
    gpu = get_gpu()
    step = topk.prepare(rows=3, length=200_003, k=100, dtype=x.dtype, gpu=gpu)
    for least in (1, 1000):  # with one, too few elements reach the bound; with 1000, too many
        division = dataclasses.replace(step.division, least=least)
        unlucky = dataclasses.replace(step, division=division)
        given = on_gpu.put(x)
        out = (
            on_gpu.put(np.full((3, 100), NAN, np.float32)),
            on_gpu.put(np.full((3, 100), -1, "i4")),
        )

        unlucky.launch(given, out=out, workspace=on_gpu.put(np.zeros(1 << 22, np.uint8)))

        check(x, on_gpu.get(out[0]), on_gpu.get(out[1]), 100)


@pytest.mark.gpu
def test_captured_once_it_runs_on_whatever_the_input_then_holds(on_gpu):
    gpu, rows, length, k = get_gpu(), 8, 50_021, 40
    step = topk.prepare(rows=rows, length=length, k=k, dtype=np.float32, gpu=gpu)
    x = on_gpu.put(np.zeros((rows, length), np.float32))
    out = on_gpu.put(np.zeros((rows, k), np.float32)), on_gpu.put(np.zeros((rows, k), np.int32))
    workspace = on_gpu.put(np.full(step.workspace_bytes, 0xCD, np.uint8))

    with gpu.current(), new_stream() as stream:
        launch = lambda at, _: step.launch(x, out=out, workspace=workspace, stream=at)  # noqa: E731
        with captured(stream, launch) as replay:
            for seed in range(3):
                now = rows_of("normal", rows, length, seed=seed)
                x[:] = on_gpu.put(now)
                on_gpu.wait()
                replay()
                on_gpu.wait()

                check(now, on_gpu.get(out[0]), on_gpu.get(out[1]), k)


@pytest.mark.gpu
def test_outputs_of_the_caller_are_written_whole_and_nothing_else(on_gpu):
    x = rows_of("normal", 5, 30_011)
    values, indices = np.full((7, 33), -7, np.float32), np.full((7, 33), -7, np.int32)
    out = on_gpu.put(values), on_gpu.put(indices)

    topk.topk(on_gpu.put(x), 33, out=(out[0][1:6], out[1][1:6]))

    check(x, on_gpu.get(out[0])[1:6], on_gpu.get(out[1])[1:6], 33)
    for array in out:
        assert (on_gpu.get(array)[[0, 6]] == -7).all()


@pytest.mark.gpu
def test_no_rows_are_no_launch(on_gpu):
    values, indices = topk.topk(on_gpu.put(np.zeros((0, 50_000), np.float32)), 5)

    assert on_gpu.get(values).shape == on_gpu.get(indices).shape == (0, 5)


@pytest.mark.gpu
def test_wrong_outputs_are_refused_by_name(on_gpu):
    x = on_gpu.put(np.zeros((2, 100), np.float32))
    values, indices = np.zeros((2, 5), np.float32), np.zeros((2, 5), np.int64)

    with pytest.raises(DTypeError, match="indices holds int64, but the kernel needs int32"):
        topk.topk(x, 5, out=(on_gpu.put(values), on_gpu.put(indices)))
    with pytest.raises(ShapeError, match=r"values has shape \(2, 5\), but the result has \(2, 6\)"):
        topk.topk(x, 6, out=(on_gpu.put(values), on_gpu.put(indices)))


def test_arrays_in_host_memory_are_refused():
    with pytest.raises(DeviceError, match="x lies in cpu memory"):
        topk.topk(np.zeros((2, 100), np.float32), 5)


def test_types_without_a_kernel_are_refused():
    with pytest.raises(DTypeError, match="int32"):
        topk.variant_for(np.int32)
