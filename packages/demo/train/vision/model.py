"""Qwen3-VL in plain PyTorch: the first stage's decoder with a tower before it.

Parameters have the names of transformers' Qwen3VLForConditionalGeneration.
"""

from dataclasses import dataclass

import torch
import torch._dynamo
from model import Decoder, Shape
from torch import Tensor, nn
from torch.nn import functional

from vision.patches import Layout, layout_of

_INIT_STD = 0.02
_Z_LOSS = 1e-4
_EPS = 1e-6
_PARTS = 9  # of a picture's height and width, for the probes


@dataclass(frozen=True, slots=True)
class TowerShape:
    """Sizes of the tower. Rows of its layer `deep` join the decoder behind its first layer."""

    hidden: int = 256
    ffn: int = 512
    layers: int = 6
    heads: int = 4
    patch_values: int = 3 * 2 * 16 * 16
    side: int = 14  # of the table of positions
    deep: int = 2
    out: int = 256
    theta: float = 10_000.0


VISION_SHAPE = Shape(vocab_size=4224)
SECTIONS = (12, 10, 10)  # of the 32 frequencies: time, height, width


class Mixing(nn.Module):
    """Attention of a picture's patches over each other."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden)
        self.proj = nn.Linear(shape.hidden, shape.hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Return the attention of x[N P C] where mask[N 1 P P] allows it."""
        count, length, _ = x.shape
        qkv = self.qkv(x).view(count, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        out = functional.scaled_dot_product_attention(
            _rotate(q, cos, sin), _rotate(k, cos, sin), v, attn_mask=mask
        )
        mixed: Tensor = self.proj(out.transpose(1, 2).reshape(count, length, -1))
        return mixed


class TowerMLP(nn.Module):
    """fc2(gelu(fc1(x)))."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(shape.hidden, shape.ffn)
        self.linear_fc2 = nn.Linear(shape.ffn, shape.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return the product."""
        out: Tensor = self.linear_fc2(functional.gelu(self.linear_fc1(x), approximate="tanh"))
        return out


class Block(nn.Module):
    """A layer of the tower."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.hidden, eps=_EPS)
        self.norm2 = nn.LayerNorm(shape.hidden, eps=_EPS)
        self.attn = Mixing(shape)
        self.mlp = TowerMLP(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Return x after the layer."""
        x = x + self.attn(self.norm1(x), cos, sin, mask)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Merger(nn.Module):
    """Four neighbouring patches become a row; the norm stands before or behind their joining."""

    def __init__(self, shape: TowerShape, *, is_deep: bool) -> None:
        super().__init__()
        wide = 4 * shape.hidden
        self.is_deep = is_deep
        self.norm = nn.LayerNorm(wide if is_deep else shape.hidden, eps=_EPS)
        self.linear_fc1 = nn.Linear(wide, wide)
        self.linear_fc2 = nn.Linear(wide, shape.out)

    def forward(self, x: Tensor) -> Tensor:
        """Return rows[N P/4 out] of x[N P C]."""
        count, length, _ = x.shape
        if not self.is_deep:
            x = self.norm(x)
        x = x.reshape(count, length // 4, -1)
        if self.is_deep:
            x = self.norm(x)
        out: Tensor = self.linear_fc2(functional.gelu(self.linear_fc1(x)))
        return out


class PatchEmbed(nn.Module):
    """The first product; its weight is stored as a convolution's."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.proj = nn.Linear(shape.patch_values, shape.hidden)


class Tower(nn.Module):
    """Patches to rows: those of the last layer, and those of layer `deep`."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        self.shape = shape
        self.patch_embed = PatchEmbed(shape)
        self.pos_embed = nn.Embedding(shape.side**2, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.merger = Merger(shape, is_deep=False)
        self.deepstack_merger_list = nn.ModuleList([Merger(shape, is_deep=True)])

    def forward(self, patches: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Return (rows, deep rows), both [N 50 out], of patches[N P 1536]."""
        x = self.patch_embed.proj(patches) + self._positions(layout)
        cos, sin = self._angles(layout)
        mask = layout.frame[:, None, :, None] == layout.frame[:, None, None, :]
        deep = x
        for number, block in enumerate(self.blocks):
            x = block(x, cos, sin, mask)
            if number == self.shape.deep:
                deep = self.deepstack_merger_list[0](x)
        return self.merger(x), deep

    def _positions(self, layout: Layout) -> Tensor:
        """Return the table of positions stretched over each picture, corner to corner."""
        side = self.shape.side
        down = layout.row * (side - 1) / (layout.num_rows - 1)
        across = layout.column * (side - 1) / (layout.num_columns - 1)
        down, across = down.clamp(max=side - 1), across.clamp(max=side - 1)
        top, left = down.floor().long(), across.floor().long()
        low, right = (top + 1).clamp(max=side - 1), (left + 1).clamp(max=side - 1)
        below, along = (down - top)[..., None], (across - left)[..., None]
        upper = self.pos_embed(top * side + left) * (1 - along)
        upper = upper + self.pos_embed(top * side + right) * along
        lower = self.pos_embed(low * side + left) * (1 - along)
        lower = lower + self.pos_embed(low * side + right) * along
        return upper * (1 - below) + lower * below

    def _angles(self, layout: Layout) -> tuple[Tensor, Tensor]:
        quarter = self.shape.hidden // self.shape.heads // 4
        steps = torch.arange(quarter, device=layout.row.device, dtype=torch.float32) / quarter
        frequencies = self.shape.theta**-steps
        turned = [place[..., None] * frequencies for place in (layout.row, layout.column)]
        angles = torch.cat(turned * 2, dim=-1)[:, None]
        return angles.cos(), angles.sin()


class Whole(nn.Module):
    """Tower and decoder: the part that transformers calls "model"."""

    def __init__(self, shape: Shape, tower: TowerShape) -> None:
        super().__init__()
        self.visual = Tower(tower)
        self.language_model = Decoder(shape)


class Seeing(nn.Module):
    """The whole model, and probes for training: what is in a cell, its colour, and where it is."""

    def __init__(self, shape: Shape, tower: TowerShape, *, kinds: int, colours: int) -> None:
        super().__init__()
        self.shape = shape
        self.model = Whole(shape, tower)
        self.entropy = _entropy
        sizes = (kinds, colours, _PARTS, _PARTS)
        self.probes = nn.ModuleList(nn.Linear(tower.out, size) for size in sizes)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                is_output = name.endswith(("o_proj.weight", "down_proj.weight", "attn.proj.weight"))
                nn.init.normal_(weight, std=_INIT_STD * (0.25 if is_output else 1.0))
            elif name.endswith("bias"):
                nn.init.zeros_(weight)
        nn.init.normal_(self.model.visual.patch_embed.proj.weight, std=tower.patch_values**-0.5)

    def rows(
        self, ids: Tensor, positions: Tensor, places: Tensor, seen: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return the last layer's output [R S C]; rows of pictures stand at flat places[N 50]."""
        decoder = self.model.language_model
        count, length = ids.shape
        rows, deep = (self._spread(each, places, count * length) for each in seen)
        shape = (count, length, -1)
        is_media = self._spread(torch.ones_like(seen[0][..., :1]), places, count * length)
        x = torch.where(is_media.view(shape) > 0, rows.view(shape), decoder.embed_tokens(ids))
        cos, sin = self._angles(positions)
        for number, layer in enumerate(decoder.layers):
            x = layer(x, cos, sin)
            if number == 0:
                x = x + deep.view(shape)
        out: Tensor = decoder.norm(x)
        return out

    def _spread(self, rows: Tensor, places: Tensor, count: int) -> Tensor:
        """Return rows at their places among count, zeros elsewhere; places of -1 fall away."""
        at = torch.where(places >= 0, places, count).flatten().long()
        empty = rows.new_zeros((count + 1, rows.shape[-1]))
        return empty.index_put((at,), rows.flatten(0, 1))[:-1]

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin [R 1 S D] of positions[R 3 S], the three axes taking turns."""
        half = self.shape.head_size // 2
        number = torch.arange(half, device=positions.device)
        axis = torch.where(number < 3 * min(SECTIONS[1:]), number % 3, 0)
        steps = torch.arange(half, device=positions.device, dtype=torch.float32) / half
        turned = positions[:, axis].transpose(1, 2) * self.shape.rope_theta**-steps
        angles = torch.cat((turned, turned), dim=-1)[:, None]
        return angles.cos(), angles.sin()

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logits of rows."""
        return functional.linear(rows, self.model.language_model.embed_tokens.weight)

    def compile(self) -> None:
        """Compile the parts, each once for all layers: the whole takes minutes to compile."""
        torch._dynamo.config.recompile_limit = 64  # all parts' calls count as one function
        tower, decoder = self.model.visual, self.model.language_model
        for part in (*tower.blocks, tower.merger, *tower.deepstack_merger_list, *decoder.layers):
            part.compile(dynamic=False)
        self.entropy = torch.compile(_entropy, dynamic=False)

    def loss(self, batch: dict[str, Tensor], patches: Tensor, *labels: Tensor) -> Tensor:
        """Return the losses [6]: cross entropy of targets, z-loss, and those of the probes."""
        layout = layout_of(batch["grid"])
        seen = self.model.visual(patches, layout)
        ids = batch["ids"].long()
        rows = self.rows(ids[:, :-1], batch["positions"], batch["places"], seen)
        head = self.model.language_model.embed_tokens.weight
        losses = self.entropy(rows, head, ids[:, 1:], batch["target"])
        is_cell = (batch["places"] >= 0).flatten()
        probed = [
            functional.cross_entropy(
                probe(seen[0]).flatten(0, 1).float(), label.flatten(), reduction="none"
            )
            for probe, label in zip(self.probes, (*labels, *_parts(layout)), strict=True)
        ]
        shares = [(each * is_cell).sum() / is_cell.sum().clamp(min=1) for each in probed]
        return torch.stack((*losses, *shares))


def _parts(layout: Layout) -> tuple[Tensor, Tensor]:
    """Return in which part of its picture's height and of its width each cell [N 50] lies."""
    return (
        (layout.row[:, ::4] + 1) * _PARTS // layout.num_rows,
        (layout.column[:, ::4] + 1) * _PARTS // layout.num_columns,
    )


def _entropy(rows: Tensor, head: Tensor, wanted: Tensor, target: Tensor) -> Tensor:
    """Return cross entropy and z-loss [2], means over the targets."""
    logits = functional.linear(rows, head).float()
    normaliser = torch.logsumexp(logits, dim=-1)
    found = logits.gather(-1, wanted[..., None]).squeeze(-1)
    weight = target.float()
    both = torch.stack((normaliser - found, _Z_LOSS * normaliser.square()))
    return (both * weight).sum((1, 2)) / weight.sum().clamp(min=1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x[N H P D] with its halves turned."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)
