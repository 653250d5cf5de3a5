"""Rotary embedding against its definition; the tests that need no GPU come first."""

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
from spaninfer_kernels_cuda import rope
from spaninfer_op_reference import relative_error, rotate, tolerance

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
SIZES = [
    dict(rows=1, heads=1, size=64, rotary=64),
    dict(rows=7, heads=28, size=128, rotary=128),
    dict(rows=1009, heads=3, size=96, rotary=96),
    dict(rows=5, heads=4, size=256, rotary=64),
    dict(rows=13, heads=5, size=80, rotary=20),
    dict(rows=2, heads=3, size=72, rotary=0),
    dict(rows=4099, heads=32, size=64, rotary=32),
]


def test_the_variant_carries_the_options_and_the_division():
    variant = rope.variant_for(rope.RopeOptions(128, 64), ml_dtypes.bfloat16)

    assert str(variant) == (
        "rope_rows[INTERLEAVED=0 LANES=8 ROTARY=64 SIZE=128 T=bfloat16 THREADS=128 VECTOR=8]"
    )


@pytest.mark.parametrize("rotary", [130, 63, -2])
def test_rope_turns_pairs_of_the_head(rotary):
    with pytest.raises(ShapeError, match=f"pairs: {rotary} elements of a head of 128"):
        rope.variant_for(rope.RopeOptions(128, rotary), np.float16)


def test_arguments_that_do_not_fit_are_named():
    x, cosine, sine = arguments(rows=3, heads=2, size=64, rotary=64, dtype=np.float16)

    with pytest.raises(ShapeError, match="sine: T is 2, but x has T = 3"):
        rope.rope(x, cosine, sine[:2])
    with pytest.raises(DTypeError, match="cosine holds float64, but the kernel needs float32"):
        rope.rope(x, cosine.astype(np.float64), sine)
    with pytest.raises(ShapeError, match="sine must begin at a multiple of 16 bytes"):
        rope.rope(x, cosine, np.zeros(sine.size + 1, np.float32)[1:].reshape(sine.shape))
    with pytest.raises(DeviceError, match="x lies in cpu memory"):
        rope.rope(x, cosine, sine)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{sizes['rows']} rows")
def test_heads_are_rotated_as_defined(on_gpu, dtype, style, sizes):
    x, cosine, sine = arguments(**sizes, dtype=dtype)

    y = rope.rope(*map(on_gpu.put, (x, cosine, sine)), interleaved=style == "interleaved")

    assert near(on_gpu.get(y), x, cosine, sine, style)


@pytest.mark.gpu
def test_heads_in_the_middle_of_longer_rows_are_rotated_in_place(on_gpu):
    row, cosine, sine = arguments(rows=6, heads=9, size=64, rotary=64, dtype=np.float16)
    held = on_gpu.put(row)

    rope.rope(held[:, 2:7], on_gpu.put(cosine), on_gpu.put(sine), out=held[:, 2:7])

    got = on_gpu.get(held)
    assert near(got[:, 2:7], row[:, 2:7], cosine, sine, "half")
    np.testing.assert_array_equal(got[:, [0, 1, 7, 8]], row[:, [0, 1, 7, 8]])


@pytest.mark.gpu
def test_no_rows_are_no_launch(on_gpu):
    arrays = arguments(rows=0, heads=2, size=64, rotary=64, dtype=np.float16)

    y = rope.rope(*map(on_gpu.put, arrays))

    assert on_gpu.get(y).shape == (0, 2, 64)


@pytest.mark.gpu
def test_prepared_and_captured_it_runs_on_whatever_the_input_then_holds(on_gpu):
    gpu, sizes = get_gpu(), dict(rows=9, heads=4, size=128, rotary=128, dtype=np.float16)
    step = rope.prepare(rope.RopeOptions(128, 128), rows=9, heads=4, dtype=np.float16, gpu=gpu)
    held = [on_gpu.put(np.zeros_like(array)) for array in arguments(**sizes)]
    out = on_gpu.put(np.zeros((9, 4, 128), np.float16))

    def launch(stream, _):
        step.launch(*held, out=out, stream=stream)

    with gpu.current(), new_stream() as stream, captured(stream, launch) as replay:
        for seed in range(3):
            now = arguments(**sizes, seed=seed)
            for array, values in zip(held, now, strict=True):
                array[:] = on_gpu.put(values)
            on_gpu.wait()
            replay()
            on_gpu.wait()

            assert near(on_gpu.get(out), *now, "half")


def arguments(*, rows, heads, size, rotary, dtype, seed=0):
    """x, cosine and sine."""
    draw = np.random.default_rng(seed)
    angles = draw.uniform(0, 6, (rows, rotary // 2))
    x = draw.standard_normal((rows, heads, size)).astype(dtype)
    return x, np.cos(angles, dtype="f4"), np.sin(angles, dtype="f4")


def near(actual, x, cosine, sine, style):
    x64, cosine, sine = (array.astype(np.float64) for array in (x, cosine, sine))
    expected = rotate(x64, cosine, sine, style)
    return relative_error(actual.astype(np.float64), expected) <= tolerance(x.dtype.name)
