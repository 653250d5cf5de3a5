"""GEMM with packed weights as calls (GEMV where a step has one token)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from spaninfer_host_limits import usable_cpus

from spaninfer_kernels_cpu.codegen.isa_level import active_level
from spaninfer_kernels_cpu.codegen.kernel import Kernel
from spaninfer_kernels_cpu.codegen.memory import odd_lines
from spaninfer_kernels_cpu.elementwise.activations import (
    ACTIVATIONS,
    COARSE_ACTIVATIONS,
    SILU,
    Activation,
)
from spaninfer_kernels_cpu.errors import ShapeError, check_vector, demand_size
from spaninfer_kernels_cpu.gemm.gemm_arguments import GemmArguments, WeightSizes, WorkChunks
from spaninfer_kernels_cpu.gemm.gemm_kernel import gemm_kernel
from spaninfer_kernels_cpu.gemm.gemm_tiles import GemmTiles
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel, k_blocks, rows_per_task
from spaninfer_kernels_cpu.gemm.micro_kernel_choice import MicroKernels
from spaninfer_kernels_cpu.gemm.prepare_activations import (
    RowReaders,
    prepare_call,
    prepare_kernel,
    prepared_bytes,
)
from spaninfer_kernels_cpu.quantisation.layout import PANEL, Format, Layout
from spaninfer_kernels_cpu.quantisation.packed import Packed
from spaninfer_kernels_cpu.runtime.call import TOKENS, Call, Matrix, address_or_zero
from spaninfer_kernels_cpu.runtime.numa import numa_nodes, shares

Floats = NDArray[np.float32]

_MOST_PANELS = 32  # of a chunk: 0.1 ms of reading in a 0.5B model; threads yield between chunks
_NO_MATRIX = Matrix(0, 0)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The epilogue of a GEMM: residual + scale * (product + bias[O]), then a named activation.

    `coarse`: it may be off by 2e-5, as where its results are rounded to 8 bits.
    """

    bias: Floats | None = None
    residual: Matrix | None = None
    scale: float = 1.0
    activation: str | None = None
    coarse: bool = False

    @property
    def kernel_activation(self) -> Activation:
        """The activation that the kernel is compiled for, of which one without makes no use."""
        if self.activation is None:
            return SILU
        exact = ACTIVATIONS[self.activation]
        return COARSE_ACTIVATIONS.get(self.activation, exact) if self.coarse else exact


_PLAIN = Epilogue()


@dataclass(frozen=True, slots=True)
class Gemm:
    """GEMM with one packed weight, or with several side by side.

    `rounded`: activations may be rounded to bfloat16 where weights are that and the CPU multiplies
    both so. `micro`: the micro-kernels for one row and for many, where they were chosen by
    measurement (`tuning`); None is the choice of the ISA level. The caller keeps the weight alive.
    """

    weight: Packed
    rounded: bool = False
    micro: MicroKernels | None = None

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory per row that `calls` wants; 0 if none."""
        return odd_lines(self.weight.count * self._part_bytes)

    @property
    def can_gate(self) -> bool:
        """Return True if `gated_calls` takes the weight: no panel with both halves, one node."""
        return self.weight.layout.outputs % (2 * PANEL) == 0 and len(numa_nodes()) == 1

    def calls(
        self,
        x: Matrix,
        *,
        out: Matrix,
        scratch: int,
        epilogue: Epilogue = _PLAIN,
        count: int = TOKENS,
    ) -> list[Call]:
        """Return the calls that write x @ weight.T to out, or what the epilogue makes of it.

        Of N weights in one, number n multiplies part n of rows of N C numbers and writes part n of
        N O; these have neither bias nor residual (KernelError). `scratch` has `scratch_bytes` per
        row; `count`: which of the step's counts is the number of rows. The caller keeps the bias
        alive. `out` may be the residual; neither may be `x`.
        """
        weight, layout, residual = self.weight, self.weight.layout, epilogue.residual
        if epilogue.bias is not None or residual is not None:
            demand_size("weights in one, with bias or residual", weight.count, 1, 1)
        if epilogue.bias is not None:
            check_vector("bias", epilogue.bias, layout.outputs)
        into, most = _blocks(layout, self._micro.many)
        calls, x = self._prepare(x, scratch, count, into)
        chunks = _chunks(weight.count * layout.panels, usable_cpus(), len(numa_nodes()))
        arguments = replace(
            self._arguments(x, out, chunks),
            bias=address_or_zero(epilogue.bias),
            residual=_NO_MATRIX if residual is None else residual,
            scale=1.0 if residual is None else epilogue.scale,
            k_blocks=into,
            rows_per_task=most,
            activated=epilogue.activation is not None,
        )
        return [*calls, _call(arguments, count, self._micro, epilogue.kernel_activation)]

    def gated_calls(
        self, x: Matrix, act: str, *, out: Matrix, scratch: int, count: int = TOKENS
    ) -> list[Call]:
        """Return the calls that write act(x @ gate.T) * (x @ up.T) to out; weight[2I C] is gate
        above up, and `can_gate`.

        Everything else is as in `calls`. A prompt's 2I numbers of a row, which are read once,
        never leave the caches so: 10 MB of 256 rows in a 0.5B model.
        """
        layout = self.weight.layout
        if not self.can_gate:
            raise ShapeError(f"{layout.outputs} outputs cannot be gated panel by panel")
        calls, x = self._prepare(x, scratch, count)
        half = layout.panels // 2
        arguments = replace(
            self._arguments(x, out, _chunks(half, usable_cpus(), 1)),
            half=half,
            rows_per_task=rows_per_task(layout, self._micro.many),
        )
        return [*calls, _call(arguments, count, self._micro, ACTIVATIONS[act])]

    def grouped_call(self, x: Matrix, *, out: Matrix, segments: int, count: int) -> Call:
        """Multiply prepared rows, segment after segment, each by the weight that the segment names.

        `segments` is the address of SEGMENT_NUMBERS int32 for as many segments as `count` says;
        those without rows do nothing. Where `prepared_bytes` is 0, x are rows as they are.
        """
        chunks = _chunks(self.weight.layout.panels, usable_cpus(), 1)
        arguments = replace(self._arguments(x, out, chunks), segments=segments)
        micro = MicroKernels.of_groups(
            self.weight.layout.format, rounded=self.rounded, level=active_level()
        )
        return _call(arguments, count, micro)

    @property
    def kernel(self) -> Kernel:
        """The kernel of `calls`."""
        return _kernel(self._micro, SILU)

    @property
    def _micro(self) -> MicroKernels:
        return self.micro or _micro_kernels(self.weight.layout.format, self.rounded)

    @property
    def _part_bytes(self) -> int:
        return prepared_bytes(self.weight.layout, _readers(self._micro))

    def _prepare(
        self, x: Matrix, scratch: int, count: int, into: int = 1
    ) -> tuple[list[Call], Matrix]:
        """Return the calls that prepare rows in scratch memory, if any, and where rows are then.

        `into` that many blocks of channels.
        """
        stride, weight = self.scratch_bytes, self.weight
        if not stride:
            return [], x
        prepared, parts = Matrix(scratch, stride), weight.count * into
        layout, readers = weight.layout, _readers(self._micro)
        if into > 1:
            layout = replace(layout, channels=layout.channels // into)
        call = prepare_call(x, layout, readers, out=prepared, parts=parts, count=count)
        return [call], prepared

    def _arguments(self, x: Matrix, out: Matrix, chunks: NDArray[np.int64]) -> GemmArguments:
        """Return the arguments of a plain product, a row at a time by all channels."""
        layout = self.weight.layout
        return GemmArguments(
            panels=self.weight.panels.ctypes.data,
            weight=_sizes(layout),
            x=x,
            part_bytes=self._part_bytes or layout.channels * 4,
            out=out,
            bias=0,
            residual=_NO_MATRIX,
            scale=1.0,
            segments=0,
            chunks=WorkChunks(starts=chunks.ctypes.data, count=len(chunks) - 1),
            half=0,
            activated=False,
            threads=usable_cpus(),
            k_blocks=1,
            rows_per_task=1,
        )


def _call(
    arguments: GemmArguments, count: int, micro: MicroKernels, activation: Activation = SILU
) -> Call:
    kernel = _kernel(micro, activation)
    return Call(kernel, arguments, arguments.chunks.count, arguments.rows_per_task, count)


def gemm_kernels(format: Format, *, rounded: bool = False) -> tuple[Kernel, ...]:
    """Return the kernels of `Gemm.calls` with weights of a format."""
    micro = _micro_kernels(format, rounded)
    return prepare_kernel(_readers(micro)), _kernel(micro, SILU)


# What a call is made of that depends on the weight's form alone is found once: `linear` and others
# write calls down for every product, in some 30 µs.


@cache
def _kernel(micro: MicroKernels, activation: Activation) -> Kernel:
    return gemm_kernel(_tiles(micro, activation))


@cache
def _readers(micro: MicroKernels) -> RowReaders:
    return RowReaders(micro.one, micro.prepared_apart, _tiles(micro, SILU).few)


def _tiles(micro: MicroKernels, activation: Activation) -> GemmTiles:
    return GemmTiles(micro.one, micro.small, micro.medium, micro.many, activation)


@cache
def _micro_kernels(format: Format, rounded: bool) -> MicroKernels:
    return MicroKernels.of(format, rounded=rounded, level=active_level())


@cache
def _blocks(layout: Layout, many: MicroKernel) -> tuple[int, int]:
    """Return into how many blocks channels are cut, and the most rows of a task."""
    into = k_blocks(layout, many)
    return into, rows_per_task(layout, many, into)


@cache
def _sizes(layout: Layout) -> WeightSizes:
    return WeightSizes(
        panel_bytes=layout.panel_bytes,
        records=layout.records,
        panels=layout.panels,
        outputs=layout.outputs,
    )


@cache
def _chunks(panels: int, threads: int, nodes: int) -> NDArray[np.int64]:
    """Return where the chunks of that many panels begin, and the end; it is kept for good.

    A chunk is one stream from memory: each new one waits for it, 0.3 µs of the 2 that a panel of a
    small product takes. The first are large; the last small, so that threads end together. Each
    node's share (`numa.place`) has as many: some of the last node's may be without panels.
    """
    (_, share), *_ = shares(panels, nodes)
    starts = [0]
    while starts[-1] < share:
        left = share - starts[-1]
        starts.append(starts[-1] + min(max(1, left // (2 * threads // nodes)), _MOST_PANELS))
    ends = [node * share + start for node in range(nodes) for start in starts[:-1]]
    return np.minimum([*ends, panels], panels)
