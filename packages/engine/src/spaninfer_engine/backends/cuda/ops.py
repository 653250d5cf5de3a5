"""The operators on NVIDIA GPUs in 16 bits: kernels of our own, cuBLAS, and plain torch.

Keys and values lie in spans as span_attention.SpanLayout.contiguous says. Every operator can be
captured into a CUDA graph: none waits for the device, and shapes depend on the host's numbers only.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from span_attention import ArrayStrides, Format, SpanLayout
from spaninfer_kernel_launch import Gpu, compile_all, recording_kernels
from spaninfer_kernels_cuda import activation, norm
from spaninfer_kernels_cuda.quantized_gemm import QuantizedFormat
from spaninfer_kernels_cuda.scaled_gemm import Codes
from spaninfer_op_reference import (
    QuantizedWeight,
    WeightFormat,
    cos_sin,
    dequantize_weight,
    frequencies,
    quantize_to_grid,
)
from torch import Tensor

from spaninfer_engine.backends.backend import OnProgress
from spaninfer_engine.backends.cuda import scaled, sparse_attention
from spaninfer_engine.backends.cuda.attention import Plan, Pool
from spaninfer_engine.backends.cuda.coded_experts import (
    CodedExperts,
    can_hold,
    expert_format,
    pack_coded,
    round_experts,
)
from spaninfer_engine.backends.cuda.expert_weights import DOWN, GATE_UP, LAYOUTS, pack_experts
from spaninfer_engine.backends.cuda.fusions import claims_of
from spaninfer_engine.backends.cuda.heads import Heads
from spaninfer_engine.backends.cuda.kernels import FORMATS, Kernels
from spaninfer_engine.backends.cuda.linear_weight import GATED_GEMM, GEMM, LinearWeight
from spaninfer_engine.backends.cuda.quantised import kernel_format, pack_stored, quantize_weight
from spaninfer_engine.backends.cuda.quantised_gemm import QuantizedGemm
from spaninfer_engine.backends.cuda.slices import AttentionSlices
from spaninfer_engine.backends.torch.attention import Scoring
from spaninfer_engine.backends.torch.ops import TorchOps
from spaninfer_engine.config import KVDType
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.ops.operation import Operation, Packable
from spaninfer_engine.ops.step import Rotation, SpanCache, Step
from spaninfer_engine.ops.table import AlibiKind, Claim
from spaninfer_engine.spec.attention_nodes import Rope, RopeStyle
from spaninfer_engine.spec.mlp_nodes import ActivationName
from spaninfer_engine.spec.nodes import CacheGroup

HEAD_GRAIN = 16  # attention kernels take heads of multiples of so many channels
CODE_GRAIN = 32  # the same where two of them share a byte
COLUMN_GRAIN = 8  # columns of weights that are multiplied as codes
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
        quantize: QuantizedFormat | Codes | WeightFormat | None = None,
        batch_invariant: bool = False,
    ) -> None:
        super().__init__(dtype, device)
        self._quantize = quantize
        self.kernels = Kernels(self.dtype, self.device, batch_invariant=batch_invariant)
        self._quantized = QuantizedGemm(self.kernels)
        self._groups = groups
        self._format = FORMATS[self.dtype] if kv_dtype is None else _CODES[kv_dtype]
        self._pools: dict[int, Pool] = {}  # by cache group

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
        gc.collect()  # in circles lie tables of steps, 40 MiB to 1 GiB (run.on_cuda)
        torch.cuda.empty_cache()

    def layout(self, operator: str, argument: str) -> str:
        """Corrections of scores are added in float32, where a wrong choice is a large error; sinks
        are scores, too. So are logarithms of decays.
        """
        if operator in ("route", "delta_gates") or argument == "sinks":
            return "float32"
        if argument == "weight" and operator in _GEMMS:
            return _GEMMS[operator]
        return "plain"

    def expanded_layout(self, layout: str) -> str:
        """Weights that are no codes lie as in the checkpoint, but for gates of experts."""
        is_as_stored = layout == DOWN or layout in _GEMMS.values()
        return "plain" if self._quantize is None and is_as_stored else layout

    def pack(self, arrays: Sequence[Packable], layout: str) -> Any:  # Tensor or LinearWeight
        """Copy to the device, in this backend's dtype unless the layout is float32."""
        if self._quantize is not None and layout in _GEMMS.values():
            return self._pack_rounded(arrays, self._quantize, gated=layout == GATED_GEMM)
        if layout == DOWN or layout in LAYOUTS:
            return self._pack_numbers_of_experts(arrays, layout)
        if layout == "float32":
            (array,) = arrays
            packed = torch.empty(array.shape, dtype=torch.float32, device=self.device)
            self.upload(array, packed)
            return packed
        return super().pack(arrays, layout)

    def _pack_rounded(
        self,
        arrays: Sequence[Packable],
        format: QuantizedFormat | Codes | WeightFormat,
        *,
        gated: bool,
    ) -> Tensor | LinearWeight:
        """Round weights to codes, one after the other; none whose rows kernels cannot read.

        Grids that GEMMs have no codes of are made on the host, and held as published ones are.
        """
        grain = scaled.COLUMN_GRAIN if isinstance(format, Codes) else COLUMN_GRAIN
        if arrays[0].shape[1] % grain:
            return super().pack(arrays, GEMM)
        if isinstance(format, WeightFormat):
            kept = kernel_format([format])
            assert kept is not None, format
            weights = [quantize_to_grid(np.asarray(array), format) for array in arrays]
            return self._pack_stored(weights, format=kept, gated=gated)
        tensors = (super(CudaOps, self).pack([array], GEMM) for array in arrays)
        if isinstance(format, Codes):
            return scaled.quantize_weight(tensors, format, self.kernels)
        return quantize_weight(tensors, format, self._quantized, gated=gated)

    def quantized_packer(
        self, formats: Sequence[WeightFormat], layout: str
    ) -> Callable[[Sequence[QuantizedWeight]], Any] | None:
        """Return what packs weights in these formats for GEMMs with their codes.

        None where no GEMM has their codes, and where another format was requested.
        """
        if self._quantize is not None or layout not in (*_GEMMS.values(), GATE_UP, DOWN):
            return None
        if layout in (GATE_UP, DOWN):
            of_experts = expert_format(formats)
            if of_experts is None:
                return None
            return partial(self._pack_experts, format=of_experts, gated=layout == GATE_UP)
        gated = layout == GATED_GEMM
        codes = scaled.codes_of(formats)
        if codes is not None and self.kernels.scaled.is_there:
            return partial(self._pack_codes, codes=codes, gated=gated)
        format = kernel_format(formats)
        if format is None:
            return None
        return partial(self._pack_stored, format=format, gated=gated)

    def _pack_codes(
        self, weights: Sequence[QuantizedWeight], *, codes: Codes, gated: bool
    ) -> Tensor | LinearWeight:
        if scaled.can_stack([weight.shape for weight in weights], codes, gated=gated):
            return scaled.pack_stored(weights, codes, self.kernels, self.upload)
        return super().pack([dequantize_weight(weight) for weight in weights], GEMM)

    def _pack_stored(
        self, weights: Sequence[QuantizedWeight], *, format: QuantizedFormat, gated: bool
    ) -> Tensor | LinearWeight:
        if weights[0].shape[1] % COLUMN_GRAIN:
            return super().pack([dequantize_weight(weight) for weight in weights], GEMM)
        return pack_stored(weights, format, self._quantized, self.upload, gated=gated)

    def _pack_numbers_of_experts(
        self, arrays: Sequence[Packable], layout: str
    ) -> Tensor | CodedExperts:
        packed: Tensor
        if layout == DOWN:
            packed = super().pack(arrays, "plain")
        else:
            packed = pack_experts(arrays, layout, self.upload, dtype=self.dtype, device=self.device)
        if self._quantize is None or packed.ndim < 3:  # biases
            return packed
        return round_experts(packed, self._quantize, self._quantized)

    def _pack_experts(
        self, weights: Sequence[QuantizedWeight], *, format: QuantizedFormat, gated: bool
    ) -> Tensor | CodedExperts:
        if can_hold(weights):
            return pack_coded(weights, format, self._quantized, self.upload, gated=gated)
        numbers = [dequantize_weight(weight) for weight in weights]
        packed: Tensor = self.pack(numbers, GATE_UP if gated else "plain")
        return packed

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
        self._pools[group.index] = Pool.at(memory.data_ptr(), layout)
        if self._format not in FORMATS.values():
            return SpanCache(memory, memory, memory)  # codes, which only kernels read
        return SpanCache(
            _view(memory.view(self.dtype), layout, layout.keys, layout.key_size),
            _view(memory.view(self.dtype), layout, layout.values, layout.value_size),
            memory,
        )

    def rotation_table(self, rope: Rope, max_len: int) -> Rotation[Tensor] | None:
        """Return cos and sin [max_len D/2] of every position; None where they change with length.

        A rope with several axes has one table: each frequency's column is read at its own axis.
        """
        rule = rope.frequencies
        if rule.state(max_len):
            return None
        inverse, factor = frequencies(rule, 1)
        cos, sin = cos_sin(np.arange(max_len), inverse.astype(np.float32, copy=False), factor)
        return Rotation(self.from_host(cos), self.from_host(sin))

    def plan(self, slices: AttentionSlices, caches: tuple[SpanCache[Tensor], ...]) -> Plan:
        """Return what attention shares over the layers of a step; becomes `step.attention`."""
        return Plan(slices, caches, dict(self._pools), self.kernels)

    # ---- rows ------------------------------------------------------------------------------------

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
        slots, spans = plan.slices.slots[group], plan.pools[group].spans[layer]
        heads = Heads.of(key, key, key if value is None else value)
        self.kernels.append_rows(heads, slots, spans)

    def attend(
        self,
        step: Step[Tensor],
        query: Tensor,
        *,
        group: int,
        layer: int,
        scale: float,
        softcap: float | None = None,
        window: int | None = None,
        chunked: bool = False,
        alibi: AlibiKind | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention by kernels where they support the sizes, decodes apart from longer slices."""
        plan: Plan = step.attention
        scoring = Scoring(scale, softcap, window, alibi, chunked)
        layout = plan.pools[group].layout
        if self._has_no_kernel(layout.key_size, layout.value_size, alibi, chunked):
            return plan.attend_plainly(query, group, layer, scoring, sinks)
        return plan.attend(query, group, layer, scoring, sinks).view(*query.shape[:2], -1)

    def is_plain(self, operation: Operation) -> bool:
        """Return True if plain torch operators compute this attention, for want of a kernel."""
        group = self._groups[int(str(operation.constant("group")))]
        constants = dict(operation.constants)
        kinds = constants.get("alibi"), bool(constants.get("chunked"))
        return self._has_no_kernel(group.key_size, group.value_size, *kinds)

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
        at = sparse_attention.At(step.attention, self.kernels, group, layer)
        return sparse_attention.select_keys(at, query, weights, top_k)

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
        at = sparse_attention.At(step.attention, self.kernels, group, layer)
        return sparse_attention.attend_selected(at, query, selected, scale)

    def can_select(self, _operations: Sequence[Operation]) -> bool:
        """Return True; ConfigError where sparse attention would have to read codes: it has no
        kernels.
        """
        if self._format not in FORMATS.values():
            raise ConfigError(
                f"kv_dtype {self._format.label} needs attention kernels, and there are none for "
                "sparse attention, whose keys an indexer selects; leave kv_dtype out"
            )
        return True

    def _has_no_kernel(self, key_size: int, value_size: int, alibi: object, chunked: bool) -> bool:
        """Raise ConfigError where plain operators would have to read codes."""
        grain = CODE_GRAIN if self._format is Format.UINT4 else HEAD_GRAIN
        plain = key_size % grain or value_size % grain or alibi == "rounded" or chunked
        if plain and self._format not in FORMATS.values():
            raise ConfigError(
                f"kv_dtype {self._format.label} needs attention kernels, and there are none for "
                f"this model: heads of {key_size} and {value_size} channels, ALiBi {alibi}, "
                f"chunks {chunked}; leave kv_dtype out"
            )
        return bool(plain)

    # ---- experts ---------------------------------------------------------------------------------

    def router(self, x: Tensor, *, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The scores of experts, in float32: of few rows by a kernel of ours, of many by cuBLAS."""
        if self.kernels.experts.has_router(x):
            return self.kernels.experts.score(x, weight, bias)
        logits = torch.mm(x, weight.T, out_dtype=torch.float32)
        return logits if bias is None else logits + bias


_GEMMS = {"linear": GEMM, "gated_linear": GATED_GEMM}
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
