"""Muon for matrices and AdamW for the rest, with one schedule for both."""

from collections import defaultdict

import torch
from torch import Tensor, nn

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # quintic of Keller Jordan, "Muon", 2024
_MOMENTUM = 0.95
_MUON_DECAY = 0.01


class Muon:
    """Steepest descent under the spectral norm: momentum, made orthogonal, is the update.

    Matrices of one shape are stacked, so that a step is a handful of batched products.
    """

    def __init__(self, weights: list[nn.Parameter], rate: float) -> None:
        groups: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for weight in weights:
            groups[weight.shape].append(weight)
        self.groups = list(groups.values())
        self.momenta = [torch.zeros_like(torch.stack(group)) for group in self.groups]
        self.rate = rate

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Update every matrix at rate * scale from its gradient."""
        rate = self.rate * scale
        for group, momentum in zip(self.groups, self.momenta, strict=True):
            gradient = torch.stack([_gradient(weight) for weight in group])
            momentum.lerp_(gradient, 1 - _MOMENTUM)
            update = _orthogonal(gradient.lerp(momentum, _MOMENTUM))
            rows, columns = group[0].shape
            update *= max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(group, 1 - rate * _MUON_DECAY)
            torch._foreach_add_(group, list(update.to(group[0].dtype)), alpha=-rate)


class Optimizer:
    """Both optimizers over one model."""

    def __init__(self, model: nn.Module, *, muon_rate: float, adam_rate: float) -> None:
        named = list(model.named_parameters())
        matrices = [w for name, w in named if w.ndim == 2 and "embed" not in name]
        others = [w for name, w in named if w.ndim < 2 or "embed" in name]
        self.muon = Muon(matrices, muon_rate)
        self.adam = torch.optim.AdamW(others, lr=adam_rate, betas=(0.9, 0.95), weight_decay=0.0)
        self.adam_rate = adam_rate

    def step(self, scale: float) -> None:
        """Update all weights at scale times the full rates, and forget the gradients."""
        self.muon.step(scale)
        for group in self.adam.param_groups:
            group["lr"] = self.adam_rate * scale
        self.adam.step()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Forget the gradients that backward has left."""
        for matrices in self.muon.groups:
            for weight in matrices:
                weight.grad = None
        self.adam.zero_grad(set_to_none=True)


def schedule(step: int, num_steps: int, *, warmup: int, decay_share: float) -> float:
    """Return the scale of the rates at step: a rise, a plateau and a straight fall to zero.

    >>> [schedule(step, 100, warmup=10, decay_share=0.5) for step in (0, 9, 50, 75, 100)]
    [0.1, 1.0, 1.0, 0.5, 0.0]
    """
    rise = (step + 1) / warmup
    fall = (num_steps - step) / (num_steps * decay_share)
    return max(0.0, min(1.0, rise, fall))


def _gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad


def _orthogonal(matrices: Tensor) -> Tensor:
    """Return the nearest orthogonal matrices to matrices[N R C], by five Newton-Schulz steps."""
    a, b, c = _NEWTON_SCHULZ
    # a CPU without bfloat16 products takes minutes for a step in them
    x: Tensor = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x
