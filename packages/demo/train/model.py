"""Qwen3 in plain PyTorch, with the parameter names of transformers' Qwen3ForCausalLM."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_INIT_STD = 0.02
_Z_LOSS = 1e-4  # keeps the softmax's normaliser near one, so that bfloat16 logits stay small


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model. 8 layers of 256 channels are deeper than wide: small stories need steps
    of inference more than they need facts (Eldan and Li, TinyStories, 2023)."""

    vocab_size: int = 4096
    hidden: int = 256
    ffn: int = 512
    layers: int = 8
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    max_len: int = 4096
    rope_theta: float = 100_000.0
    norm_eps: float = 1e-6


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalised, in x's dtype."""
        return functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """Causal attention with grouped keys and values, normalised heads and rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        self.q_proj = nn.Linear(shape.hidden, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden, keys, bias=False)
        self.v_proj = nn.Linear(shape.hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden, bias=False)
        self.q_norm = RMSNorm(shape.head_size, shape.norm_eps)
        self.k_norm = RMSNorm(shape.head_size, shape.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the attention of x[B T C] over itself."""
        batch, length, _ = x.shape
        heads = (batch, length, -1, self.shape.head_size)
        q = self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2)
        v = self.v_proj(x).view(heads).transpose(1, 2)
        out = functional.scaled_dot_product_attention(
            _rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True, enable_gqa=True
        )
        mixed: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))
        return mixed


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down_proj = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the gated product of x[B T C]."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Attention and MLP, each on a normalised copy and added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return x[B T C] after the layer."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    """Embedding, layers and last norm: the part that transformers calls "model"."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)


class Qwen3(nn.Module):
    """The language model; the head shares the embedding's weight."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.model = Decoder(shape)
        angles = _angles(shape)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = (2 * shape.layers) ** -0.5 if is_output else 1.0
                nn.init.normal_(weight, std=_INIT_STD * scale)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits[B T V] of ids[B T]."""
        x = self.model.embed_tokens(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return functional.linear(self.model.norm(x), self.model.embed_tokens.weight)

    def loss(self, ids: Tensor) -> Tensor:
        """Return cross entropy, and z-loss apart: both means over ids[B T+1] but the first."""
        logits = self(ids[:, :-1]).float()
        normaliser = torch.logsumexp(logits, dim=-1)
        target = logits.gather(-1, ids[:, 1:, None]).squeeze(-1)
        return torch.stack(((normaliser - target).mean(), _Z_LOSS * normaliser.square().mean()))


def _angles(shape: Shape) -> Tensor:
    """Return the rotary angles[max_len head_size], both halves alike as in GPT-NeoX."""
    exponents = torch.arange(0, shape.head_size, 2, dtype=torch.float32) / shape.head_size
    frequencies = shape.rope_theta**-exponents
    angles = torch.outer(torch.arange(shape.max_len, dtype=torch.float32), frequencies)
    return torch.cat((angles, angles), dim=-1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x[B H T D] with its halves turned by the angles of cos[T D], sin[T D]."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x * cos + turned * sin).to(x.dtype)
