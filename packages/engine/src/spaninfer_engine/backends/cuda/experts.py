"""Chosen experts without waiting for the device: plain torch operators that graphs can capture.

Two forms. Grouped GEMMs read the experts that are used, and exist for bfloat16 on Hopper and
datacenter Blackwell. Elsewhere every token passes through all experts: X / k times the
arithmetic, which decoding hides behind reading the weights, and prefill does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

_GROUPED_ON = (9, 10)  # major compute capabilities with a kernel that does not wait for the host
_ALIGNMENT_BYTES = 16
_MOST_NUMBERS = 1 << 28  # of an intermediate array of the dense form

Gate = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Experts:
    """The weights of all experts as products take them.

    gate[X C I] and up[X C I], or gate_up[X C 2I]; down[X I C]. Transposed views are welcome.
    gate_up_bias[X 2I] and down_bias[X C] join the products.
    """

    down: Tensor
    gate: Tensor | None = None
    up: Tensor | None = None
    gate_up: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None

    @classmethod
    def of(
        cls,
        down: Tensor,
        gate: Tensor | None,
        up: Tensor | None,
        gate_up: Tensor | None,
        gate_up_bias: Tensor | None,
        down_bias: Tensor | None,
        layout: Literal["oi", "io"],
    ) -> Experts:
        """Return views of the weights of `ops.table.Ops.experts`."""
        if gate_up is None:
            assert gate is not None
            assert up is not None
            return cls(down.mT, gate.mT, up.mT)
        biases = {"gate_up_bias": gate_up_bias, "down_bias": down_bias}
        if layout == "oi":
            return cls(down.mT, gate_up=gate_up.mT, **biases)
        return cls(down, gate_up=gate_up, **biases)

    def __len__(self) -> int:
        """X."""
        return len(self.down)

    def apply(
        self,
        x: Tensor,
        matmul: Callable[[Tensor, Tensor], Tensor],
        gated: Gate,
        biased: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Return what experts make of x, each product taken by `matmul`, `biased` by its bias."""
        inner = self._inner(x, matmul, gated, biased)
        return _plus(matmul(inner, self.down), self.down_bias, biased)

    def _inner(
        self,
        x: Tensor,
        matmul: Callable[[Tensor, Tensor], Tensor],
        gated: Gate,
        biased: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        if self.gate_up is not None:
            both = _plus(matmul(x, self.gate_up), self.gate_up_bias, biased)
            return gated(*both.chunk(2, -1))
        assert self.gate is not None
        assert self.up is not None
        return gated(matmul(x, self.gate), matmul(x, self.up))


def _plus(rows: Tensor, bias: Tensor | None, biased: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return rows if bias is None else biased(rows, bias)


def has_grouped_gemm(x: Tensor, experts: Experts) -> bool:
    """Return True if there is a grouped GEMM for these sizes on this device."""
    channels, inner = experts.down.shape[2], experts.down.shape[1]
    aligned = not (
        channels * x.itemsize % _ALIGNMENT_BYTES or inner * x.itemsize % _ALIGNMENT_BYTES
    )
    return (
        x.dtype == torch.bfloat16
        and aligned
        and torch.cuda.get_device_capability(x.device)[0] in _GROUPED_ON
    )


def grouped_experts(
    x: Tensor, ids: Tensor, shares: Tensor, experts: Experts, gated: Gate
) -> Tensor:
    """[T C]: the rows of x[T C], sorted by expert, in one product per projection.

    ids[T k] and shares[T k] are the chosen experts and their weights.
    """
    if not len(x):
        return torch.empty_like(x)
    order = ids.flatten().argsort(stable=True)  # [T*k]
    every = torch.arange(len(experts), device=x.device)
    ends = torch.searchsorted(ids.flatten()[order], every, right=True, out_int32=True)

    def matmul(rows: Tensor, weights: Tensor) -> Tensor:
        return F.grouped_mm(rows, weights, offs=ends)

    def biased(rows: Tensor, bias: Tensor) -> Tensor:
        return rows + bias[ids.flatten()[order]]

    rows = experts.apply(x[order // ids.shape[1]], matmul, gated, biased)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
    chosen = rows[back].view(*ids.shape, -1).float()  # [T k C]
    return (chosen * shares[..., None]).sum(1).to(x.dtype)


def dense_experts(x: Tensor, ids: Tensor, shares: Tensor, experts: Experts, gated: Gate) -> Tensor:
    """[T C]: every row of x[T C] through every expert, in pieces that fit into memory."""
    widest = max(experts.down.shape[1:]) * len(experts) * 2
    at_once = max(1, _MOST_NUMBERS // widest)
    cut = (torch.split(part, at_once) for part in (x, ids, shares))
    pieces = [
        _dense_piece(*piece, experts=experts, gated=gated) for piece in zip(*cut, strict=True)
    ]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _dense_piece(
    x: Tensor, ids: Tensor, shares: Tensor, *, experts: Experts, gated: Gate
) -> Tensor:
    share = shares.new_zeros(len(x), len(experts)).scatter_(1, ids, shares)
    rows = x.expand(len(experts), -1, -1)
    every = experts.apply(rows, torch.bmm, gated, lambda y, bias: y + bias[:, None])  # [X T C]
    every = every.float()
    return (every * share.T[..., None]).sum(0).to(x.dtype)
