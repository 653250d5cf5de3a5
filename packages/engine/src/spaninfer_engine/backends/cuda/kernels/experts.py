"""Kernels of expert layers on torch tensors: router scores, and the experts that they choose."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from spaninfer_kernels_cuda import grouped_gemm, moe
from torch import Tensor

from spaninfer_engine.backends.cuda.kernels.sizes import EXPERT_TOKENS

if TYPE_CHECKING:
    from spaninfer_engine.backends.cuda.kernels.kernels import Kernels

_KEPT = 4096  # prepared launches of a kind; one takes about 2 kB

# Scores that a router of ours computes at most, of rows with so many channels. 128 experts by 2,048
# channels take 1.3, 2.1, 2.8 and 6.5 µs for 1, 64, 256 and 512 rows, where cuBLAS takes 5.7 to 6.3.
# Of 7,168 channels cuBLAS is as fast from the first row on (H200, 2026-11-29).
_ROUTER_SCORES, _ROUTER_CHANNELS = 128 * 256, 4096


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """An expert layer as kernels are prepared for it, for any number of tokens.

    The last of its experts may be shared by all tokens (`RouteOptions.shared`).
    """

    experts: int
    channels: int
    inner: int
    act: grouped_gemm.Gate
    rule: moe.RouteOptions
    formats: moe.Formats | None = None  # of weights that are codes

    def shape(self, tokens: int) -> moe.MoeShape:
        """Return the shape for that many tokens."""
        return moe.MoeShape(tokens, self.rule.choices, self.channels, self.inner)


class ExpertCall(NamedTuple):
    """The arrays of an expert layer beside x and logits: the residual becomes the sum with it.

    Rows with a negative number in `slots` are padding.
    """

    weights: moe.Experts
    correction: Tensor | None = None
    residual: Tensor | None = None
    norm: moe.Norm | None = None
    slots: Tensor | None = None


class ExpertKernels:
    """Launches for the expert layers of one model; see `Kernels`."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._layers: set[tuple[ExpertLayer, bool]] = set()  # and whether a norm follows
        self._router = lru_cache(_KEPT)(self._prepare_router)
        self._moe = lru_cache(_KEPT)(self._prepare_moe)

    def allocate(self) -> None:
        """Allocate what launches share."""
        self._ticket.zero_()

    def cache_clear(self) -> None:
        """Prepare every launch anew when it comes next."""
        self._router.cache_clear()
        self._moe.cache_clear()

    def prepare_every_size(self) -> None:
        """Prepare the layers that came so far for all numbers of tokens."""
        for layer, with_norm in tuple(self._layers):
            for tokens in EXPERT_TOKENS:
                self._moe(layer, tokens, with_norm)

    @cached_property
    def _ticket(self) -> Tensor:
        """Zero, as every launch that draws from it leaves it for the next."""
        return torch.zeros(1, dtype=torch.int32, device=self._kernels.device)

    def has_router(self, x: Tensor, weight: Tensor) -> bool:
        """Return True if ours is faster for x[T C] and weight[E C], or is to be invariant."""
        (rows, channels), experts = x.shape, len(weight)
        is_faster = rows * experts <= _ROUTER_SCORES and channels <= _ROUTER_CHANNELS
        return not channels % 8 and (self._kernels.batch_invariant or is_faster)

    def score(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x[T C] @ weight[E C].T + bias[E] in float32."""
        x = x.contiguous()
        out = torch.empty(len(x), len(weight), dtype=torch.float32, device=self._kernels.device)
        self._router(*out.shape, x.shape[1]).launch(
            x.data_ptr(),
            weight.data_ptr(),
            out=out.data_ptr(),
            bias=0 if bias is None else bias.data_ptr(),
            stream=self._kernels.stream,
        )
        return out

    def _prepare_router(
        self, tokens: int, experts: int, channels: int
    ) -> moe.router.PreparedRouter:
        return moe.router.prepare(
            tokens=tokens,
            experts=experts,
            channels=channels,
            dtype=self._kernels.element,
            gpu=self._kernels.gpu,
        )

    def run(self, layer: ExpertLayer, x: Tensor, logits: Tensor, call: ExpertCall) -> Tensor:
        """Return what the experts that logits[T E] choose make of x[T C], and perhaps its norm."""
        self._layers.add((layer, call.norm is not None))
        prepared = self._moe(layer, len(x), call.norm is not None)
        workspace = torch.empty(
            prepared.workspace_bytes, dtype=torch.uint8, device=self._kernels.device
        )
        out = call.residual
        if out is None:
            out = self._kernels.empty(len(x), layer.channels)
        prepared.launch(
            x.contiguous(),
            logits,
            call.weights,
            out=out,
            workspace=workspace,
            ticket=self._ticket,
            residual=call.residual,
            correction=call.correction,
            slots=call.slots,
            norm=call.norm,
            stream=self._kernels.stream,
        )
        return out

    def _prepare_moe(self, layer: ExpertLayer, tokens: int, with_norm: bool) -> moe.PreparedMoe:
        return moe.prepare(
            layer.shape(tokens),
            layer.rule,
            experts=layer.experts,
            act=layer.act,
            dtype=self._kernels.element,
            gpu=self._kernels.gpu,
            with_norm=with_norm,
            batch_invariant=self._kernels.batch_invariant,
            formats=layer.formats,
        )
