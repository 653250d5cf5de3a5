"""Boxes copied by TMA, as their tensor map says."""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from spaninfer_kernel_launch import (
    Array,
    Call,
    Int32,
    Launch,
    Pointer,
    Signature,
    TensorMap,
    Variant,
    compile_variant,
    encode_tensor_map,
    get_gpu,
    load,
    new_stream,
)

SHAPE = (5, 7, 128)
KERNEL = """
extern "C" __global__ void bring(int x, const __grid_constant__ TensorMap map, int y, int z,
                                 unsigned short* out, int count) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned short box[];
  __shared__ Barrier barrier;
  if (threadIdx.x == 0) {
    init_barrier(&barrier, 1);
    publish_barriers();
    arrive_expecting(&barrier, 2 * count);
    copy_box(box, map, x, y, z, &barrier);
  }
  __syncthreads();
  wait(&barrier, 0);
  for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = box[i];
#endif
}
extern "C" __global__ void count_up(unsigned short* out, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = i;
}
"""


class Bring(NamedTuple):
    x: Int32
    map: TensorMap
    y: Int32
    z: Int32
    out: Pointer
    count: Int32


class CountUp(NamedTuple):
    out: Pointer
    count: Int32


BRING, COUNT_UP = Signature("bring", Bring), Signature("count_up", CountUp)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("columns", [32, 64])
def test_a_box_arrives_swizzled_with_zeros_where_the_array_ends(source_of, columns, dtype):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    gpu = get_gpu()
    if gpu.arch in ("sm_75", "sm_80"):
        pytest.skip("the copy engine for boxes came with Hopper")
    source = source_of(KERNEL, ("types.cuh", "mma.cuh", "copy.cuh"), (BRING, COUNT_UP))
    compiled = compile_variant(Variant.of("bring", source, {}), gpu.arch)

    with gpu.current(), new_stream() as stream:
        box = brought(torch, compiled, columns, dtype, gpu, stream)

    whole = np.zeros((8, 32, 128), np.int16)
    whole[: SHAPE[0], : SHAPE[1]] = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    expected = whole[3:6, 2:18, 64 : 64 + columns].reshape(48, -1, 8)
    parts = columns // 8  # of 16 bytes; 8 rows of 128 bytes, or of 64, use all banks once
    row = np.arange(48)[:, None]
    order = np.arange(parts) ^ (row % 8 if columns == 64 else row // 2 % 4)
    swizzled = np.take_along_axis(expected, order[:, :, None], axis=1)
    np.testing.assert_array_equal(box.reshape(48, -1, 8), swizzled)


@pytest.mark.gpu
def test_a_thread_without_a_context_gets_the_same_map():
    sizes = {"shape": SHAPE, "strides": (7 * 128, 128, 1), "box": (3, 16, 64)}
    with new_stream() as stream:
        array = Array(SHAPE, np.float16, get_gpu(), stream)
        encode_tensor_map.cache_clear()
        with get_gpu().current():
            expected = encode_tensor_map(array.pointer, "float16", **sizes)
        encode_tensor_map.cache_clear()

        with ThreadPoolExecutor(1) as threads:
            encoded = threads.submit(encode_tensor_map, array.pointer, "float16", **sizes)
        del array  # its memory is given back on the stream

        assert encoded.result() == expected


def brought(torch, compiled, columns, dtype, gpu, stream):
    """What a box of 3 x 16 x columns at [3, 2, 64] holds; no memory of `stream` is left behind.

    Columns count 16 bits: the same array and box have twice as many of 8.
    """
    count, each = 3 * 16 * columns, 1 if dtype == "float16" else 2
    array = Array(SHAPE, np.float16, gpu, stream)
    out = Array((3, 16, columns), np.int16, gpu, stream)
    fill = Call(load(compiled, gpu, COUNT_UP), Launch((1, 1, 1), (128, 1, 1)))
    fill(stream, CountUp(array.pointer, int(np.prod(SHAPE))))
    encoded = encode_tensor_map(
        *(array.pointer, dtype),
        shape=(*SHAPE[:2], each * 128),
        strides=(each * 7 * 128, each * 128, 1),
        box=(3, 16, each * columns),
    )
    call = Call(load(compiled, gpu, BRING), Launch((1, 1, 1), (128, 1, 1), 2 * count))
    call(stream, Bring(x=each * 64, map=encoded, y=2, z=3, out=out.pointer, count=count))
    return torch.from_dlpack(out).cpu().numpy()
