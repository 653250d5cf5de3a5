"""The operators on NVIDIA GPUs in 16 bits: kernels of our own, cuBLAS, and plain torch.

Keys and values lie in spans as span_attention.SpanLayout.contiguous says. Every operator can be
captured into a CUDA graph: none waits for the device, and shapes depend on the host's numbers only.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from span_attention import ArrayStrides, Format, SpanLayout
from spaninfer_kernel_launch import Gpu, compile_all, recording_kernels
from spaninfer_kernels_cuda import activation, norm
from spaninfer_op_reference import (
    QuantizedWeight,
    WeightFormat,
    cos_sin,
    frequencies,
)
from torch import Tensor

from spaninfer_engine.backends.backend import OnProgress
from spaninfer_engine.backends.cuda.attention import sparse
from spaninfer_engine.backends.cuda.attention.plan import GroupCache, Plan
from spaninfer_engine.backends.cuda.attention.slices import AttentionSlices
from spaninfer_engine.backends.cuda.fusions.coded_norms import leave_out_numbers
from spaninfer_engine.backends.cuda.fusions.layers import claims_of
from spaninfer_engine.backends.cuda.kernels.heads import Heads
from spaninfer_engine.backends.cuda.kernels.kernels import FORMATS, Kernels
from spaninfer_engine.backends.cuda.kernels.quantised_gemm import QuantizedGemm
from spaninfer_engine.backends.cuda.weights.linear import LinearWeight
from spaninfer_engine.backends.cuda.weights.packing import (
    AS_STORED,
    GEMMS,
    WeightForms,
    WeightPacker,
)
from spaninfer_engine.backends.torch.ops import TorchOps
from spaninfer_engine.config import KVDType
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.ops.bound import BoundProgram
from spaninfer_engine.ops.operation import Operation, Packable
from spaninfer_engine.ops.scoring import Scoring
from spaninfer_engine.ops.step import Rotation, SpanCache, Step
from spaninfer_engine.ops.table import Claim
from spaninfer_engine.spec.attention_nodes import Rope, RopeStyle
from spaninfer_engine.spec.mlp_nodes import ActivationName
from spaninfer_engine.spec.nodes import CacheGroup

HEAD_GRAIN = 16  # attention kernels take heads of multiples of this many channels
CODE_GRAIN = 32  # the same where two of them share a byte
_CODES = {"fp8": Format.FP8, "int8": Format.INT8, "uint4": Format.UINT4}


class CudaOps(TorchOps):
    """ops.table.Ops on torch tensors of a 16-bit dtype on a GPU, for a model with these groups."""

    name = "cuda"

    def __init__(
        self,
        dtype: Literal["bfloat16", "float16"],
        device: str = "cuda",
        groups: Sequence[CacheGroup] = (),
        kv_dtype: KVDType | None = None,
        *,
        weights: WeightForms = AS_STORED,
        batch_invariant: bool = False,
    ) -> None:
        super().__init__(dtype, device)
        self.joins_shared_experts = weights == AS_STORED
        self.kernels = Kernels(self.dtype, self.device, batch_invariant=batch_invariant)
        self._quantized = QuantizedGemm(self.kernels)
        self._packer = WeightPacker(
            self.kernels, self._quantized, super().pack, self.upload, weights.rounding
        )
        self._groups = groups
        self._format = FORMATS[self.dtype] if kv_dtype is None else _CODES[kv_dtype]
        self._group_caches: dict[int, GroupCache] = {}

    @property
    def gpu(self) -> Gpu:
        """The GPU, as kernels know it."""
        return self.kernels.gpu

    @property
    def stream(self) -> int:
        """The handle of torch's current stream, on which everything runs."""
        return self.kernels.stream

    # ---- tensors ---------------------------------------------------------------------------------

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Norms, rotations and appends in one launch; sums with norms; gated MLPs."""
        return claims_of(self)

    def chain(self, program: BoundProgram[Tensor]) -> BoundProgram[Tensor]:
        """Every kernel by itself; norms write codes alone where nothing else is read."""
        leave_out_numbers(program, self.kernels)
        return program

    def warm(self) -> None:
        """Allocate what steps share; kernels are compiled when the first step of a size is run."""
        self.kernels.allocate()

    def prepare_every_size(self) -> None:
        """Prepare GEMMs and decodes that came so far for all numbers of rows: request all of their
        kernels.
        """
        self.kernels.prepare_every_size()
        self._quantized.prepare_every_size()

    def compile(self, trace: Callable[[], None], on_progress: OnProgress) -> None:
        """Compile side by side the kernels that `trace` launches and no earlier start compiled.

        It is called once, and its launches do nothing.
        """
        # What an attempt before has prepared would do something, with what nothing has computed.
        self._start_over()
        try:
            with recording_kernels() as wanted:
                trace()
        finally:
            self._start_over()
        compile_all(wanted, on_progress)

    def _start_over(self) -> None:
        """Prepare every launch anew, and free what earlier steps used."""
        self.kernels.forget()
        self._quantized.forget()
        gc.collect()  # in circles lie tables of steps, 40 MiB to 1 GiB
        torch.cuda.empty_cache()

    def layout(self, operator: str, argument: str) -> str:
        """Return the layout of a weight: float32 for routing corrections (a rounded one chooses
        other experts), attention sinks and decays; a GEMM layout for matrices; else plain.
        """
        if operator in ("route", "delta_gates") or argument == "sinks":
            return "float32"
        if argument == "weight" and operator in GEMMS:
            return GEMMS[operator]
        return "plain"

    def expanded_layout(self, layout: str) -> str:
        """Return the layout of unquantised weights: plain, but for gate and up of experts."""
        return self._packer.expanded_layout(layout)

    def pack(self, arrays: Sequence[Packable], layout: str) -> Any:  # Tensor or LinearWeight
        """Copy to the device, in this backend's dtype unless the layout is float32."""
        return self._packer.pack(arrays, layout)

    def quantized_packer(
        self, formats: Sequence[WeightFormat], layout: str
    ) -> Callable[[Sequence[QuantizedWeight]], Any] | None:
        """Return what packs weights in these formats for GEMMs with their codes.

        None where no GEMM has their codes, and where another format was requested.
        """
        return self._packer.packer_of(formats, layout)

    def cache(self, group: CacheGroup, num_spans: int, span_len: int) -> SpanCache[Tensor]:
        """Allocate the spans of a cache group: a head's tokens lie together.

        Of codes, both parts of the result are the bytes [S span_bytes] of all spans. States are
        float32 whatever keys are.
        """
        if group.state is not None:
            return super().cache(group, num_spans, span_len)
        layout = SpanLayout.contiguous(
            span_len=span_len,
            kv_heads=group.kv_heads,
            key_size=group.key_size,
            value_size=group.value_size,
            format=self._format,
            num_layers=len(group.layers),
            values_in_keys=group.values_in_keys,
        )
        shape = num_spans, layout.span_stride
        # Prefill reads whole blocks of keys, also what a window hides in front of them: spans that
        # may never have been written, whose weight of 0 does not hide a NaN in their values.
        memory = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        self._group_caches[group.index] = GroupCache.at(memory.data_ptr(), layout)
        if self._format not in FORMATS.values():
            return SpanCache(memory, memory, memory)  # codes, which only kernels read
        return SpanCache(
            _view(memory.view(self.dtype), layout, layout.keys, layout.key_size),
            _view(memory.view(self.dtype), layout, layout.values, layout.value_size),
            memory,
        )

    def from_host(self, array: NDArray[Any]) -> Tensor:
        """Copy what a step needs through pinned memory, behind what was launched; the host does not
        wait, so that it launches a step while the one before is computed.
        """
        if self.device.type != "cuda" or not array.size:
            return super().from_host(array)
        # A graph would copy from memory that is somebody else's by then.
        assert not torch.cuda.is_current_stream_capturing(), "captured steps read buffers"
        pinned = torch.from_numpy(np.require(array, None, ["C", "W"])).pin_memory()
        return pinned.to(self.device, non_blocking=True)

    def rotation_table(self, rope: Rope, max_len: int) -> Rotation[Tensor] | None:
        """Return cos and sin [max_len D/2] of every position; None where they change with length.

        A rope with several axes has one table: each frequency's column is read at its own axis.
        """
        rule = rope.frequencies
        if rule.state(max_len):
            return None
        inverse, factor = frequencies(rule, 1)
        cos, sin = cos_sin(np.arange(max_len), inverse.astype(np.float32, copy=False), factor)
        # Not through pinned memory, which torch would keep.
        return Rotation(super().from_host(cos), super().from_host(sin))

    def plan(self, slices: AttentionSlices, caches: tuple[SpanCache[Tensor], ...]) -> Plan:
        """Return what attention shares over the layers of a step; becomes `step.attention`."""
        return Plan(slices, caches, dict(self._group_caches), self.kernels)

    @property
    def most_prompt_spans(self) -> int | None:
        """The most spans of prompts, in each cache group, that a captured step reads as floats;
        None where it reads them as they are stored.
        """
        most_expanded, caches = self.kernels.attention.most_expanded, self._group_caches.values()
        return min(filter(None, (most_expanded(each.layout) for each in caches)), default=None)

    # ---- rows ------------------------------------------------------------------------------------

    def embed(self, step: Step[Tensor], *, table: Tensor, scale: float) -> Tensor:
        """Rows of the table by token id; the scale is rounded to the table's dtype."""
        return self.kernels.embed(table, step.token_ids, scale)

    def rms_norm(self, x: Tensor, *, weight: Tensor, eps: float, plus_one: bool) -> Tensor:
        """Over the last axis, in float32."""
        return self.kernels.norm_rows(_RMS, x, weight, eps=eps, weight_offset=float(plus_one))

    def layer_norm(
        self, x: Tensor, *, weight: Tensor, eps: float, bias: Tensor | None = None
    ) -> Tensor:
        """Over the last axis, in float32."""
        form = norm.NormOptions("layer", bias=bias is not None)
        return self.kernels.norm_rows(form, x, weight, eps=eps, bias=bias)

    def linear(
        self, x: Tensor, *, weight: Tensor | LinearWeight, bias: Tensor | None = None
    ) -> Tensor:
        """X @ weight.T + bias: of few rows by a kernel of ours, of many by cuBLAS."""
        if not isinstance(weight, Tensor):
            return weight.multiply(x, bias)
        if self.kernels.has_gemm(x, weight):
            return self.kernels.multiply(x, weight, bias)
        return self.kernels.dense_linear(x, weight, bias)

    def gated_linear(
        self, x: Tensor, *, act: ActivationName, weight: Tensor | LinearWeight, bias: Tensor | None
    ) -> Tensor:
        """act(gate) * up of x[T C] @ weight[2I C].T + bias, whose rows are gate, then up."""
        if not isinstance(weight, Tensor):
            return weight.multiply(x, bias, gate=act)
        if self.kernels.has_gemm(x, weight, gate=act):
            return self.kernels.multiply(x, weight, bias, gate=act)
        return self.kernels.activate_gates(self.kernels.dense_linear(x, weight, bias), act)

    def activation(self, x: Tensor, *, act: ActivationName) -> Tensor:
        """act(x)."""
        return self.kernels.activate_rows(_PLAIN[act], x)

    def rotate(self, step: Step[Tensor], x: Tensor, *, rope: int, style: RopeStyle) -> Tensor:
        """Rotate the first channels, in float32."""
        cos, sin = step.rotations[rope]
        return self.kernels.rotate_heads(x, cos, sin, interleaved=style == "interleaved")

    # ---- attention -------------------------------------------------------------------------------

    def append(
        self,
        step: Step[Tensor],
        key: Tensor,
        value: Tensor | None = None,
        *,
        group: int,
        layer: int,
    ) -> None:
        """Write keys and values into the spans; the kernel takes the keys for queries too."""
        plan: Plan = step.attention
        slots, spans = plan.slices.slots[group], plan.groups[group].spans[layer]
        heads = Heads.of(key, key, key if value is None else value)
        self.kernels.append_rows(heads, slots, spans)

    def attend(
        self,
        step: Step[Tensor],
        query: Tensor,
        *,
        group: int,
        layer: int,
        scoring: Scoring,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention by kernels where they support the sizes, decodes apart from longer slices."""
        plan: Plan = step.attention
        layout = plan.groups[group].layout
        if self._has_no_kernel(layout.key_size, layout.value_size, scoring):
            return plan.attend_plainly(query, group, layer, scoring, sinks)
        return plan.attend(query, group, layer, scoring, sinks).view(*query.shape[:2], -1)

    def is_plain(self, operation: Operation) -> bool:
        """Return True if plain torch operators compute this attention, for want of a kernel."""
        group = self._groups[int(str(operation.constant("group")))]
        return self._has_no_kernel(group.key_size, group.value_size, operation.scoring())

    def select_keys(
        self,
        step: Step[Tensor],
        query: Tensor,
        weights: Tensor,
        *,
        group: int,
        layer: int,
        top_k: int,
    ) -> Tensor:
        """The keys that an indexer selects, by kernels where there are some for its sizes."""
        at = sparse.At(step.attention, self.kernels, group, layer)
        return sparse.select_keys(at, query, weights, top_k)

    def attend_selected(
        self,
        step: Step[Tensor],
        query: Tensor,
        selected: Tensor,
        *,
        group: int,
        layer: int,
        scale: float,
    ) -> Tensor:
        """Attention to selected keys, by kernels where there are some for its sizes."""
        at = sparse.At(step.attention, self.kernels, group, layer)
        return sparse.attend_selected(at, query, selected, scale)

    def can_select(self, _operations: Sequence[Operation]) -> bool:
        """Return True; ConfigError where sparse attention would have to read codes: it has no
        kernels.
        """
        if self._format not in FORMATS.values():
            raise ConfigError(
                f"kv_dtype {self._format.label} is not supported for sparse attention; "
                "omit kv_dtype"
            )
        return True

    def _has_no_kernel(self, key_size: int, value_size: int, scoring: Scoring) -> bool:
        """Raise ConfigError where plain operators would have to read codes."""
        grain = CODE_GRAIN if self._format is Format.UINT4 else HEAD_GRAIN
        sizes = key_size % grain or value_size % grain
        plain = sizes or scoring.alibi == "rounded" or scoring.chunked
        if plain and self._format not in FORMATS.values():
            raise ConfigError(
                f"kv_dtype {self._format.label} is not supported for this model's "
                f"attention: heads of {key_size} and {value_size} channels, ALiBi "
                f"{scoring.alibi}, chunks {scoring.chunked}; omit kv_dtype"
            )
        return bool(plain)

    # ---- experts ---------------------------------------------------------------------------------

    def router(self, x: Tensor, *, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The scores of experts, in float32: of few rows by a kernel of ours, of many by cuBLAS."""
        if self.kernels.experts.has_router(x, weight):
            return self.kernels.experts.score(x, weight, bias)
        logits = torch.mm(x, weight.T, out_dtype=torch.float32)
        return logits if bias is None else logits + bias


_RMS = norm.NormOptions("rms")
_PLAIN = {act: activation.ActivationOptions(act) for act in activation.ACTS}


def _view(numbers: Tensor, layout: SpanLayout, place: ArrayStrides, size: int) -> Tensor:
    """[N S L K size]: keys or values of all layers and spans in numbers[S span]."""
    strides = (layout.layer_stride, layout.span_stride, place.token_stride, place.head_stride)
    return numbers.as_strided(
        (layout.num_layers, len(numbers), layout.span_len, layout.kv_heads, size),
        (*(stride // numbers.itemsize for stride in strides), 1),
        place.offset // numbers.itemsize,
    )
