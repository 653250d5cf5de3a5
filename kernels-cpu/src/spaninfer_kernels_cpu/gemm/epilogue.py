"""The epilogue of a GEMM: what is made of the sums of a row with a panel, and written."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.array_view import floats_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import smaller
from spaninfer_kernels_cpu.codegen.inline_function import always_inline
from spaninfer_kernels_cpu.elementwise.activations import Activation, activated
from spaninfer_kernels_cpu.gemm.gemm_arguments import Job
from spaninfer_kernels_cpu.gemm.unpacked_block import Ending
from spaninfer_kernels_cpu.quantisation.layout import PANEL
from spaninfer_kernels_cpu.runtime.call import row_at

Floats = NDArray[np.float32]


@device_function
@always_inline
def ending_of(job: Job, row: int) -> Ending:
    """Return what becomes of products from a row on; gates and a last part of a panel wait.

    What a later block of channels gives is added to what an earlier one left.
    """
    arguments, weight = job.arguments, job.arguments.weight
    part, panel = job.panel // weight.panels, job.panel % weight.panels
    first = 4 * PANEL * panel
    bias, residual, stride = arguments.bias, arguments.residual.address, arguments.residual.stride
    out = row_at(arguments.out, row) + 4 * part * weight.outputs + first
    before = residual + row * stride + first if residual != 0 else 0
    if job.k_block > 0:
        bias, before, stride = 0, out, arguments.out.stride
    return Ending(
        arguments.half == 0 and PANEL * (panel + 1) <= weight.outputs,
        out,
        arguments.out.stride,
        bias + first if bias != 0 else 0,
        before,
        stride,
        arguments.scale,
    )


@device_function
def activate_rows(activation: Activation, job: Job, ending: Ending, first: int, stop: int) -> None:
    """Apply the activation, if there is one, to what `ending` wrote of rows `first` to `stop`."""
    arguments = job.arguments
    if arguments.activated != 0 and job.k_block == arguments.k_blocks - 1:
        for row in range(first, stop):
            activate(activation, floats_at(ending.out + row * ending.stride, PANEL), PANEL)


@device_function
def write_row(activation: Activation, job: Job, row: int, sums_at: int) -> None:
    """Write what becomes of a row's sums with a panel."""
    arguments, weight = job.arguments, job.arguments.weight
    part, panel = job.panel // weight.panels, job.panel % weight.panels
    sums = floats_at(sums_at, PANEL)
    if arguments.half == 0:
        _finish(activation, job, row, (part, panel), sums)
    else:
        _gate(activation, row_at(arguments.out, row), panel, arguments.half, sums)


@device_function
def _gate(activation: Activation, row: int, panel: int, half: int, sums: Floats) -> None:
    """Write the gates of a panel to a row, or the activation of those times a panel's factors."""
    if panel < half:
        out = floats_at(row + 4 * PANEL * panel, PANEL)
        for i in range(PANEL):
            out[i] = sums[i]
    else:
        out = floats_at(row + 4 * PANEL * (panel - half), PANEL)
        for i in range(PANEL):
            out[i] = activated(activation, out[i]) * sums[i]


@device_function
def _finish(
    activation: Activation, job: Job, row: int, panel_of: tuple[int, int], sums: Floats
) -> None:
    """Write the outputs of one row, or add a later block to them; `sums` is used up.

    `panel_of`: which weight, and which of its panels.
    """
    part, panel = panel_of
    arguments, k_block = job.arguments, job.k_block
    first, outputs = panel * PANEL, arguments.weight.outputs
    width = smaller(PANEL, outputs - first)
    place = row_at(arguments.out, row) + 4 * (part * outputs + first)
    out = floats_at(place, width)
    if arguments.bias != 0 and k_block == 0:
        bias = floats_at(arguments.bias + 4 * first, width)
        for i in range(width):
            sums[i] += bias[i]
    before = place if k_block > 0 else arguments.residual.address
    if before == 0:
        for i in range(width):
            out[i] = sums[i]
    else:
        if k_block == 0:
            before += row * arguments.residual.stride + 4 * first
        residual = floats_at(before, width)
        scale = arguments.scale
        for i in range(width):
            out[i] = residual[i] + scale * sums[i]
    if arguments.activated != 0 and k_block == arguments.k_blocks - 1:
        activate(activation, out, width)


@device_function
def activate(activation: Activation, out: Floats, width: int) -> None:
    """Apply the activation to `width` numbers, in place."""
    for i in range(width):
        out[i] = activated(activation, out[i])
