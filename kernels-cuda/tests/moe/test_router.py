"""The logits of experts against their definition; tests that need no GPU come first."""

import ml_dtypes
import numpy as np
import pytest
import spaninfer_op_reference as definition
from spaninfer_kernel_launch import ShapeError, get_gpu, new_stream
from spaninfer_kernels_cuda.moe import router
from spaninfer_kernels_cuda.moe.tuning import ROUTER_WARPS, check_router, router_loads

DTYPES = [np.float16, ml_dtypes.bfloat16]
CHANNELS = [8, 64, 2048, 2880, 7168]


@pytest.mark.parametrize("channels", CHANNELS)
def test_rounds_load_all_of_a_row_and_hardly_more(channels):
    of_load = 4 * 8 * ROUTER_WARPS  # channels: of four lanes of each warp
    of_round = of_load * router_loads(channels)

    excess = -channels % of_round
    assert router_loads(channels) <= 8
    assert excess < of_load * -(-channels // of_round)


@pytest.mark.parametrize(
    ("tokens", "experts", "channels", "problem"),
    [(1, 0, 64, "0 experts"), (1, 8, 60, "channels is 60"), (10**6, 8, 64, "at most 524280")],
)
def test_sizes_without_a_kernel_are_refused(tokens, experts, channels, problem):
    with pytest.raises(ShapeError, match=problem):
        check_router(tokens, experts, channels)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("experts", [1, 16, 60, 128, 384])
@pytest.mark.parametrize("tokens", [1, 7, 64, 259])
def test_logits_are_the_definition(on_gpu, tokens, experts, channels, dtype):
    x, weight, bias = random(tokens, experts, channels, dtype)

    logits = run(on_gpu, x, weight, bias if experts % 3 else None)

    x, weight, bias = (array.astype(float) for array in (x, weight, bias))
    expected = definition.linear(x, weight, bias if experts % 3 else None)
    size = definition.linear(np.abs(x), np.abs(weight), np.abs(bias))
    assert (np.abs(logits - expected) <= 2.0**-18 * size).all()  # rounded to 16 bits: 2^-9 or -12


@pytest.mark.gpu
def test_logits_depend_on_no_other_token(on_gpu):
    x, weight, _ = random(100, 128, 2048, ml_dtypes.bfloat16)

    together = run(on_gpu, x, weight)

    for first, count in [(0, 1), (3, 7), (50, 33), (99, 1)]:
        np.testing.assert_array_equal(
            run(on_gpu, x[first:][:count], weight), together[first:][:count]
        )


def random(tokens, experts, channels, dtype):
    numbers = np.random.default_rng(tokens * experts + channels)
    x = numbers.standard_normal((tokens, channels)).astype(dtype)
    weight = (numbers.standard_normal((experts, channels)) * channels**-0.5).astype(dtype)
    return x, weight, numbers.standard_normal(experts).astype(dtype)


def run(on_gpu, x, weight, bias=None):
    """Return the kernel's logits; their memory holds NaN before."""
    (tokens, channels), experts = x.shape, len(weight)
    step = router.prepare(
        tokens=tokens, experts=experts, channels=channels, dtype=x.dtype, gpu=get_gpu()
    )
    out = on_gpu.put(np.full((tokens, experts), np.nan, np.float32))
    given = [on_gpu.put(array) for array in (x, weight)]
    with get_gpu().current(), new_stream() as stream:
        step.launch(*given, out=out, bias=None if bias is None else on_gpu.put(bias), stream=stream)
        on_gpu.wait()
    return on_gpu.get(out)
