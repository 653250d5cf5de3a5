"""Records of a panel and of a row of activations: their sizes, and where their parts lie."""

from __future__ import annotations

from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel


@device_function
def record_parts(micro: MicroKernel, record: int, record_bytes: int) -> tuple[int, int]:
    """Return where the codes of a record lie, and its scales (`Layout.record_parts`)."""
    if micro.has_inner_scales:
        return record + micro.parameter_bytes, record
    return record, record + record_bytes - micro.parameter_bytes


@device_function
def row_record_bytes(micro: MicroKernel, record_bytes: int) -> int:
    """Return the bytes of the channels of a record in a row, from the bytes of one of a panel."""
    return (record_bytes - micro.parameter_bytes) // micro.weight_bytes * micro.row_bytes
