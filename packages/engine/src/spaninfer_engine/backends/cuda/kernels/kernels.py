"""Kernels of spaninfer_kernels_cuda and span_attention on torch tensors of one GPU.

What a launch needs beyond addresses is prepared when a size first comes, and kept. Everything runs
on torch's current stream, which must not be the legacy default one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from span_attention import (
    Format,
    SpanLayout,
    Spans,
    append,
)
from spaninfer_kernel_launch import Gpu, get_gpu
from spaninfer_kernels_cuda import activation, embedding, gemm, norm, rope
from torch import Tensor

from spaninfer_engine.backends.cuda.kernels.attention import AttentionKernels
from spaninfer_engine.backends.cuda.kernels.experts import ExpertKernels
from spaninfer_engine.backends.cuda.kernels.heads import Heads, dense_rows
from spaninfer_engine.backends.cuda.kernels.invariant_gemm import InvariantGemm
from spaninfer_engine.backends.cuda.kernels.scaled_gemm import ScaledGemm
from spaninfer_engine.backends.cuda.kernels.sizes import ROWS

_KEPT = 4096  # prepared launches of a kind; one takes about 2 kB

_GATED = {act: activation.ActivationOptions(act, gated=True) for act in activation.ACTS}

FORMATS = {torch.float16: Format.FLOAT16, torch.bfloat16: Format.BFLOAT16}
ELEMENTS = {torch.float16: np.float16, torch.bfloat16: ml_dtypes.bfloat16}


class Kernels:
    """Launches on tensors of `dtype` that lie on `device`.

    Where they are `batch_invariant`, no number of rows chooses how a row is computed.
    `dense_linear` is x @ weight.T + bias of cuBLAS, `scaled` multiplies codes by codes.
    """

    workspace_bytes = 32 << 20

    def __init__(
        self, dtype: torch.dtype, device: torch.device, *, batch_invariant: bool = False
    ) -> None:
        self.dtype, self.device, self.batch_invariant = dtype, device, batch_invariant
        self.element = ELEMENTS[dtype]
        self.dense_linear: Callable[[Tensor, Tensor, Tensor | None], Tensor] = (
            InvariantGemm().linear if batch_invariant else F.linear
        )
        self.scaled = ScaledGemm(self)
        self.experts = ExpertKernels(self)
        self.attention = AttentionKernels(self)
        self._products: set[tuple[int, int, activation.Act | None]] = set()  # outputs, K, gate
        self._coded_norms: set[tuple[norm.NormOptions, int]] = set()  # and their channels
        self._embedding = lru_cache(_KEPT)(self._prepare_embedding)
        self._norm = lru_cache(_KEPT)(self._prepare_norm)
        self._activation = lru_cache(_KEPT)(self._prepare_activation)
        self._rope = lru_cache(_KEPT)(self._prepare_rope)
        self._append = lru_cache(_KEPT)(self._prepare_append)
        self._append_form = lru_cache(_KEPT)(self._make_append_form)
        self._gemm = lru_cache(_KEPT)(self._prepare_gemm)
        self._gemm_is_faster = lru_cache(_KEPT)(self._is_gemm_faster)

    @cached_property
    def gpu(self) -> Gpu:
        """The GPU, looked up with the first launch."""
        return get_gpu(self._index)

    @cached_property
    def _index(self) -> int:
        return torch.cuda.current_device() if self.device.index is None else self.device.index

    def allocate(self) -> None:
        """Allocate what launches share: before a step is captured, which would only note it."""
        self._workspace.zero_()
        self.experts.allocate()
        torch.cuda.synchronize(self.device)

    @cached_property
    def _workspace(self) -> Tensor:
        """Memory of small-M GEMMs: zeros, and every launch leaves it fit for the next."""
        return torch.zeros(self.workspace_bytes, dtype=torch.uint8, device=self.device)

    @property
    def workspace(self) -> int:
        """The address of that memory."""
        return self._workspace.data_ptr()

    def forget(self) -> None:
        """Prepare every launch anew when it comes next."""
        for kept in vars(self).values():  # one that were left out would launch what does nothing
            if hasattr(kept, "cache_clear"):
                kept.cache_clear()

    def prepare_every_size(self) -> None:
        """Prepare GEMMs, experts, decodes and norms in codes that came so far for all numbers of
        rows: ask for all of their kernels.
        """
        for outputs, inner, gate in tuple(self._products):
            for rows in ROWS:
                if self._gemm_is_faster(rows, outputs, inner, gate):
                    self._gemm(rows, outputs, inner, gate, None, inner)
        for form, channels in tuple(self._coded_norms):
            for rows in norm.ROWS_OF_DIVISIONS:
                self._norm(form, rows, channels)
        self.experts.prepare_every_size()
        self.attention.prepare_every_size()
        self.scaled.prepare_every_size()

    def empty(self, *shape: int) -> Tensor:
        """Return a tensor of `dtype` whose contents are undefined."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    @property
    def stream(self) -> int:
        """Handle of torch's current stream: a tenth of what `torch.cuda.current_stream` takes."""
        return torch._C._cuda_getCurrentRawStream(self._index)

    # ---- rows ------------------------------------------------------------------------------------

    def embed(self, table: Tensor, ids: Tensor, scale: float) -> Tensor:
        """Return scale * table[ids] [T C] of table[V C] and ids[T] int32."""
        out = self.empty(len(ids), table.shape[1])
        self._embedding(len(ids), *table.shape, scale).launch(
            table.data_ptr(), ids.data_ptr(), out=out.data_ptr(), stream=self.stream
        )
        return out

    def _prepare_embedding(
        self, rows: int, vocab: int, channels: int, scale: float
    ) -> embedding.PreparedEmbedding:
        return embedding.prepare(
            rows=rows,
            vocab=vocab,
            channels=channels,
            dtype=self.element,
            gpu=self.gpu,
            scale=scale,
        )

    def norm_rows(
        self,
        form: norm.NormOptions,
        x: Tensor,
        weight: Tensor,
        *,
        eps: float,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
        weight_offset: float = 0.0,
        codes_only: bool = False,
    ) -> Tensor:
        """Return the norm over the last axis of x, or of x + residual, which becomes the sum.

        Where GEMMs of its codes may follow, these are written as well; or `codes_only`: then the
        result stands for them, and has no memory.
        """
        x = x.contiguous()
        channels = x.shape[-1]
        out = torch.empty_like(x, device="meta" if codes_only else None)
        coded = self.scaled.coded_rows(out)
        assert coded is not None or not codes_only, "no GEMM expects codes"
        if coded is not None:
            form = replace(form, code=coded.kind.code, group=coded.kind.group)
            self._coded_norms.add((form, channels))
        self._norm(form, x.numel() // channels, channels).launch(
            x.data_ptr(),
            weight.data_ptr(),
            out=out.data_ptr() if coded is None else coded.codes.data_ptr(),
            scales=0 if coded is None else coded.scales.data_ptr(),
            rounded=0 if coded is None or codes_only else out.data_ptr(),
            eps=eps,
            residual=0 if residual is None else residual.data_ptr(),
            bias=0 if bias is None else bias.data_ptr(),
            weight_offset=weight_offset,
            stream=self.stream,
        )
        return out

    def _prepare_norm(self, form: norm.NormOptions, rows: int, channels: int) -> norm.PreparedNorm:
        return norm.prepare(
            form,
            rows=rows,
            channels=channels,
            dtype=self.element,
            gpu=self.gpu,
            batch_invariant=self.batch_invariant,
        )

    def activate_rows(self, form: activation.ActivationOptions, x: Tensor) -> Tensor:
        """Return act(x), or act(gate) * up of x[T 2I] = [gate | up] where the form is gated."""
        x = x.contiguous()
        channels = x.shape[-1] // (2 if form.gated else 1)
        out = x.new_empty(*x.shape[:-1], channels)
        prepared = self._activation(form, out.numel() // channels, channels)
        prepared.launch(x.data_ptr(), out=out.data_ptr(), stream=self.stream)
        return out

    def activate_gates(self, x: Tensor, act: activation.Act) -> Tensor:
        """Return act(gate) * up of x[T 2I] = [gate | up]."""
        return self.activate_rows(_GATED[act], x)

    def _prepare_activation(
        self, form: activation.ActivationOptions, rows: int, channels: int
    ) -> activation.PreparedActivation:
        return activation.prepare(
            form, rows=rows, channels=channels, dtype=self.element, gpu=self.gpu
        )

    # ---- GEMMs -----------------------------------------------------------------------------------

    def has_gemm(self, x: Tensor, weight: Tensor, *, gate: activation.Act | None = None) -> bool:
        """Return True if our GEMM of x[M K] and weight[N K] with epilogue is faster than cuBLAS."""
        return self._gemm_is_faster(x.shape[0], *weight.shape, gate)

    def _is_gemm_faster(
        self, rows: int, outputs: int, inner: int, gate: activation.Act | None
    ) -> bool:
        if self.batch_invariant or inner % 8:
            return False
        self._products.add((outputs, inner, gate))
        shape = gemm.Shape(rows, outputs, inner)
        return rows > 0 and gemm.is_faster(shape, self.gpu.arch, gated=gate is not None)

    def multiply(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        gate: activation.Act | None = None,
        act: activation.Act | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Return x[M K] @ weight[N K].T + bias[N], its activation, or its gated one [M N/2].

        With `residual`[M N], which must be dense, the result is added to it, and it is returned.
        """
        rows, inner = x.shape
        outputs = weight.shape[0]
        out = residual
        if out is None:
            out = self.empty(rows, outputs if gate is None else outputs // 2)
        self._gemm(rows, outputs, inner, gate, act, x.stride(0)).launch(
            x.data_ptr(),
            weight.data_ptr(),
            out=out.data_ptr(),
            workspace=self.workspace,
            bias=0 if bias is None else bias.data_ptr(),
            residual=0 if residual is None else residual.data_ptr(),
            stream=self.stream,
        )
        return out

    def _prepare_gemm(
        self,
        rows: int,
        outputs: int,
        inner: int,
        gate: activation.Act | None,
        act: activation.Act | None,
        row_stride: int,
    ) -> gemm.PreparedGemm:
        shape = gemm.Shape(rows, outputs, inner)
        prepared = gemm.prepare(
            shape, dtype=self.element, gpu=self.gpu, gate=gate, act=act, row_stride=row_stride
        )
        assert prepared.workspace_bytes <= self.workspace_bytes, shape
        return prepared

    # ---- heads -----------------------------------------------------------------------------------

    def rotate_heads(self, x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
        """Return x[T H D], its first channels rotated by cos[T R/2] and sin[T R/2]."""
        x = dense_rows(x)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        self._rotate(x, out, cos, sin, interleaved)
        return out

    def rotate_heads_in_place(
        self, x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool
    ) -> None:
        """Turn the first channels of x[T H D], whose rows may lie apart, where they are."""
        self._rotate(x, x, cos, sin, interleaved)

    def _rotate(self, x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> None:
        form = rope.RopeOptions(x.shape[2], 2 * cos.shape[1], interleaved)
        self._rope(form, *x.shape[:2], x.stride(0), out.stride(0)).launch(
            x.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            out=out.data_ptr(),
            stream=self.stream,
        )

    def _prepare_rope(
        self, form: rope.RopeOptions, rows: int, heads: int, stride: int, out_stride: int
    ) -> rope.PreparedRope:
        return rope.prepare(
            form,
            rows=rows,
            heads=heads,
            dtype=self.element,
            gpu=self.gpu,
            row_strides=(stride, out_stride),
        )

    # ---- spans -----------------------------------------------------------------------------------

    def append_rows(
        self,
        heads: Heads,
        slots: Tensor,
        spans: Spans,
        rotary: append.Rotary | None = None,
        head_norm: append.HeadNorm | None = None,
    ) -> Tensor:
        """Return queries [T H D] normed and rotated, after doing so to the keys in the spans."""
        layout = spans.layout
        out = self.empty(heads.rows, heads.query_heads, layout.key_size)
        form = self._append_form(
            head_norm is not None,
            rotary is not None and rotary.interleaved,
            0 if rotary is None else rotary.len,
        )
        prepared = self._append(form, layout, heads.rows, heads.query_heads, heads.strides)
        prepared.launch(
            *heads.addresses,
            slots.data_ptr(),
            spans=spans,
            out=out.data_ptr(),
            rotary=rotary,
            head_norm=head_norm,
            stream=self.stream,
        )
        return out

    def _prepare_append(
        self,
        form: append.AppendOptions,
        layout: SpanLayout,
        rows: int,
        heads: int,
        row_strides: tuple[int, int, int],
    ) -> append.PreparedAppend:
        return append.prepare(
            form, layout, rows=rows, heads=heads, gpu=self.gpu, row_strides=row_strides
        )

    def _make_append_form(
        self, head_norm: bool, interleaved: bool, rotary_len: int
    ) -> append.AppendOptions:
        return append.AppendOptions(head_norm, interleaved, rotary_len, self.element)
