"""The CPU backend: scripts of compiled calls, over packed weights and spans of any kind.

Nearly every operator is recorded (`recorded_claims`) and becomes a call of a kernel of
spaninfer_kernels_cpu. What is left, positions by sines and rows of media, is computed by
definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from spaninfer_kernels_cpu import (
    Compilers,
    Format,
    IsaLevelError,
    OnProgress,
    Seconds,
    ThreadPool,
    Tuned,
    attention_kernels,
    logprobs_kernel,
    make_planner_ready,
    make_thread_pool_ready,
    pack_stack,
    sampling_kernel,
    shared_thread_pool,
)
from spaninfer_op_reference import QuantizedWeight, WeightFormat

from spaninfer_engine.backends.cpu.elementwise import TABLE
from spaninfer_engine.backends.cpu.fusions import recorded_claims
from spaninfer_engine.backends.cpu.gemm import (
    EXACT_PRODUCT,
    PRODUCT,
    STACK,
    TURNED_STACK,
    as_stacks,
)
from spaninfer_engine.backends.cpu.inputs import Inputs
from spaninfer_engine.backends.cpu.kv_cache import CacheKind, allocate
from spaninfer_engine.backends.cpu.quantised import (
    keep_codes_together,
    kernel_format,
    pack_quantised,
    stored_format,
)
from spaninfer_engine.backends.cpu.script import Workers, chain
from spaninfer_engine.backends.cpu.tuning import GemmTuner
from spaninfer_engine.backends.reference.ops import ReferenceOps
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.ops.bound import BoundProgram
from spaninfer_engine.ops.fuse import can_join, use_of
from spaninfer_engine.ops.operation import Operation, Packable
from spaninfer_engine.ops.step import SpanCache, Step
from spaninfer_engine.spec.nodes import CacheGroup

Array = NDArray[np.float32]

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True, slots=True)
class WeightForms:
    """The forms that weights of GEMMs are packed in: `format`, or else as they are stored.

    Bfloat16 stays bfloat16 (`stored_as` is what the weights of a model without any would be stored
    in), and quantised ones stay codes where GEMMs have them (`formats` are those, by name).
    """

    format: Format | None = None
    stored_as: str = "float32"
    formats: Mapping[str, WeightFormat] = field(default_factory=dict)

    @property
    def rounds_activations(self) -> bool:
        """True if GEMMs round activations to codes of 8 bits, which bfloat16 rounds less.

        Of quantised weights in a file, if all of them are multiplied by such codes.
        """
        made = [self.format]
        if self.format is None:
            made = [stored_format(each) for each in self.formats.values()]
        codes = [None if each is None else each.codes for each in made]
        return bool(codes) and all(each and each.activation_bits <= 8 for each in codes)


class CpuOps(ReferenceOps):
    """ops.table.Ops on numpy arrays of float32, on the threads of a team.

    GEMMs see activations in `dtype`, everything else sees them in float32, but for the attention of
    prompts and texts, whose products round as much as the GEMMs' at least leave; weights are packed
    in the forms `weights`; the KV cache is stored in `kv_dtype`.
    `on_progress` reports kernels that are compiled while a step waits. `tuner` chooses the
    GEMMs' kernels.
    """

    name = "cpu"

    def __init__(
        self,
        dtype: Literal["float32", "bfloat16"] = "float32",
        *,
        weights: WeightForms = WeightForms(),
        kv_dtype: CacheKind = "float32",
        team: ThreadPool | None = None,
        on_progress: OnProgress | None = None,
        tuner: GemmTuner | None = None,
    ) -> None:
        super().__init__("float32")
        self._tuner = tuner or GemmTuner()
        rounded = dtype == "bfloat16"
        self._narrow = rounded or weights.rounds_activations
        self.claims = recorded_claims(
            rounded=rounded,
            narrow=self._narrow,
            tuner=self._tuner,
            can_join=self._can_join,
        )
        self._weights, self._kv_dtype = weights, kv_dtype
        self._team = team
        self._inputs = Inputs()
        self._compilers = Compilers(on_progress)

    def warm(self) -> None:
        """Start compiling kernels that every model needs and the disk lacks, in other processes.

        Meanwhile this one compiles what is called from Python. Raises ConfigError for instructions
        or keys and values that this CPU has none for.
        """
        try:
            attending = attention_kernels(self._kv_dtype, narrow=self._narrow)
            wanted = [*attending, sampling_kernel(), logprobs_kernel()]
        except IsaLevelError as lacking:  # what SPANINFER_CPU_TIER names, or what float16 needs
            raise ConfigError(str(lacking)) from lacking
        self._compilers.begin(wanted)
        make_thread_pool_ready()
        make_planner_ready()

    def tune(self, on_progress: OnProgress) -> None:
        """Choose the fastest kernels for the weights that were packed or mapped (`GemmTuner.run`).

        Scripts that are recorded later use them.
        """
        self._tuner.run(self._compilers, on_progress)
        self._tuner.end()

    def time_kernels(self, on_progress: OnProgress) -> tuple[tuple[Tuned, ...], dict[int, Seconds]]:
        """Return the times of kernels, taken anew, and by threads of those for most weights."""
        tuned = self._tuner.run(self._compilers, on_progress, anew=True)
        threads = self._tuner.thread_times(tuned[0], self._compilers) if tuned else {}
        return tuned, threads

    def chain(self, program: BoundProgram[Array]) -> BoundProgram[Array]:
        """Run neighbours that are recorded as one script."""
        team = self._team or shared_thread_pool()
        return chain(program, Workers(team, self._inputs, self._compilers))

    def cache(self, group: CacheGroup, num_spans: int, span_len: int) -> SpanCache[NDArray[Any]]:
        """Allocate the spans of a cache group."""
        if group.state is not None:
            return super().cache(group, num_spans, span_len)
        return allocate(group, num_spans, span_len, self._kv_dtype)

    def pack(self, arrays: Sequence[Packable], layout: str) -> Any:
        """Return weights of GEMMs packed, others as arrays."""
        arrays = [_narrowed(array) for array in arrays]
        if layout in (PRODUCT, EXACT_PRODUCT, STACK, TURNED_STACK):
            format = self._weights.format if layout != EXACT_PRODUCT else None
            return pack_stack(as_stacks(arrays, layout), format or self._as_stored(arrays))
        if layout == TABLE:  # as kernels read it: in place, if that can be
            return np.require(super().pack(arrays, "stored"), requirements=["C", "ALIGNED"])
        return super().pack(arrays, layout)

    def coded_layout(self, layout: str) -> str:
        """Rows of a table are read from the panels of GEMMs, where these hold a file's codes."""
        return PRODUCT if layout == TABLE and self._weights.format is None else layout

    def quantized_packer(
        self, formats: Sequence[WeightFormat], layout: str
    ) -> Callable[[Sequence[QuantizedWeight]], Any] | None:
        """Return what packs weights in these formats for GEMMs with their codes, and for tables.

        None where no GEMM has their codes, and for GEMMs where another format was requested.
        """
        is_product = layout in (PRODUCT, STACK) and self._weights.format is None
        if not is_product and layout != TABLE:
            return None
        format = kernel_format(formats)
        return None if format is None else partial(pack_quantised, format=format)

    def _can_join(self, operations: Sequence[Operation]) -> bool:
        """Return True if these projections may be joined without dequantising their weights."""
        if not can_join(operations) or self._weights.format is not None:
            return can_join(operations)
        names = [use_of(each, "weight").tensors[0].name for each in operations]
        return keep_codes_together([self._weights.formats.get(name) for name in names])

    def _as_stored(self, arrays: Sequence[Packable]) -> Format:
        """Return the format that keeps numbers as they are."""
        stored = {getattr(array, "dtype", self._weights.stored_as) for array in arrays}
        return Format("bfloat16" if stored <= {_BFLOAT16, "bfloat16"} else "float32")

    def prepare(self, step: Step[Array]) -> None:
        """Tell scripts where this step's arrays are."""
        self._inputs.fill(step)


def _narrowed(array: Packable) -> Packable:
    """Return float64, which no kernel reads, as float32."""
    if isinstance(array, np.ndarray) and array.dtype == np.float64:
        return array.astype(np.float32)
    return array
