"""TMA tensor maps: descriptors of arrays from which Hopper copies boxes."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import Final

from spaninfer_kernel_launch.driver import call_driver, driver
from spaninfer_kernel_launch.gpu import get_gpu
from spaninfer_kernel_launch.signature import TENSOR_MAP_BYTES

_TYPES: Final = {
    "float16": ("FLOAT16", 2),
    "bfloat16": ("BFLOAT16", 2),
    "int8": ("UINT8", 1),
    "float8_e4m3fn": ("UINT8", 1),
}


@lru_cache(maxsize=4096)
def encode_tensor_map(
    pointer: int,
    dtype: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
) -> bytes:
    """Return the map of an array of 16-bit floats or 8-bit codes, an argument of type `TensorMap`.

    Shape and strides (in elements) are those of the array, last axis contiguous; `box` is what one
    copy brings. Its rows, 64 or 128 bytes, come to lie in shared memory in the order that
    csrc/wgmma.cuh reads; what lies outside of the shape becomes zeros. At most 5 axes, boxes of at
    most 256 along each; address and strides multiples of 16 bytes. Raises DriverError for others.
    """
    bound = driver()
    type_name, itemsize = _TYPES[dtype]
    row_bytes = itemsize * box[-1]
    with _context():
        encoded = call_driver(
            bound.cuTensorMapEncodeTiled,
            getattr(bound.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{type_name}"),
            len(shape),
            pointer,
            [bound.cuuint64_t(size) for size in reversed(shape)],
            [bound.cuuint64_t(itemsize * stride) for stride in reversed(strides[:-1])],
            [bound.cuuint32_t(size) for size in reversed(box)],
            [bound.cuuint32_t(1)] * len(shape),
            bound.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(bound.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{row_bytes}B"),
            bound.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            bound.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    return ctypes.string_at(encoded.getPtr(), TENSOR_MAP_BYTES)


def _context() -> AbstractContextManager[None]:
    """Return what makes a context current in a thread that has none.

    The driver encodes nothing without one, and a map is the same in all.
    """
    bound = driver()
    if int(call_driver(bound.cuCtxGetCurrent)):
        return nullcontext()
    devices = map(
        partial(call_driver, bound.cuDeviceGet), range(call_driver(bound.cuDeviceGetCount))
    )
    states = (call_driver(bound.cuDevicePrimaryCtxGetState, device) for device in devices)
    in_use = next(index for index, (_, is_active) in enumerate(states) if is_active)
    return get_gpu(in_use).current()
