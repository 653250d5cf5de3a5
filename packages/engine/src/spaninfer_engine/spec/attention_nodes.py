"""The attention nodes of a model tree: over the KV cache, within a text, latent; and positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spaninfer_engine.spec.frequencies import Frequencies
from spaninfer_engine.spec.weight_nodes import Linear, Norm, Weight

RopeStyle = Literal["half", "interleaved"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding over the first `frequencies.dim` channels of a head."""

    style: RopeStyle
    frequencies: Frequencies
    sections: tuple[int, ...] = ()  # M-RoPE: how many frequencies each position axis gets
    mrope_interleaved: bool = False  # M-RoPE: t h w t h w ... instead of contiguous sections


Axes = Literal["rows", "turns", "columns"]  # which has the first pairs; or every other


@dataclass(frozen=True, slots=True)
class AxialRope:
    """Rotary embedding of two axes: half of a head's pairs turn with the row, half with the column.

    Pair i of dim // 4 on either axis turns by theta ** (-4 i / dim) per place; where axes take
    turns, a pair of the column lies halfway to the next of the row: theta ** (-(4 i + 2) / dim).
    """

    dim: int  # channels of a head, all of them rotated
    theta: float
    style: RopeStyle = "half"
    axes: Axes = "rows"


@dataclass(frozen=True, slots=True)
class Alibi:
    """A bias of slope * key position per head."""

    scaled: bool = False  # Falcon: the bias is scaled together with the scores
    rounded: bool = False  # Falcon: slope * position is rounded to bfloat16


@dataclass(frozen=True, slots=True)
class RelativeBias:
    """A bias per head and bucket of distances between query and key (T5, MPNet).

    All layers share the table; distances from `max_distance` on have the last bucket.
    """

    table: Weight  # [buckets, H]
    max_distance: int


@dataclass(frozen=True, slots=True)
class Heads:
    """The division of the hidden state into attention heads."""

    query: int
    kv: int
    dim: int


@dataclass(frozen=True, slots=True)
class SplitQkv:
    """Three projections."""

    q: Linear
    k: Linear
    v: Linear


@dataclass(frozen=True, slots=True)
class FusedQkv:
    """One projection: "concat" is [q | k | v], "grouped" is [q*ratio, k, v] per kv head."""

    linear: Linear
    layout: Literal["concat", "grouped"]


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Norms of queries and keys: of each head, or of the heads of a token in one."""

    q: Norm
    k: Norm
    joint: bool = False  # over all heads in one
    behind: bool = False  # they come behind the positions


@dataclass(frozen=True, slots=True)
class Llama4Scale:
    """q *= 1 + beta * log(1 + floor((position + offset) / length)) (Llama 4, Ministral 3)."""

    beta: float
    length: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Attention:
    """Causal grouped-query attention over the span cache."""

    heads: Heads
    qkv: SplitQkv | FusedQkv
    out: Linear
    scale: float
    group: int  # index into Decoder.groups
    positions: Rope | Alibi | None = None
    norms: HeadNorms | None = None
    softcap: float | None = None
    window: int | None = None  # keys kept: i - window < j <= i
    chunked: bool = False  # windows do not slide: j // window == i // window (Llama 4)
    logn_base: int | None = None  # q *= max(1, log_base(position + 1)) (Qwen-1)
    llama4_scale: Llama4Scale | None = None
    sinks: Weight | None = None  # [H]: scores of a key without value (gpt-oss)
    gated: bool = False  # rows of q are [q, gate] per head: sigmoids scale what is read


@dataclass(frozen=True, slots=True)
class RaggedAttention:
    """Grouped-query attention among a text's tokens, or a frame's patches; nothing is kept.

    The token at position i sees those at positions i - window < j <= i + ahead; None: without that
    bound. Encoders see all of a text, decoders that give vectors have `ahead` = 0. In towers,
    `in_windows` keeps patches to those of their window.
    """

    heads: Heads
    qkv: SplitQkv | FusedQkv
    out: Linear
    scale: float
    positions: Rope | AxialRope | RelativeBias | None = None
    norms: HeadNorms | None = None
    softcap: float | None = None
    window: int | None = None
    ahead: int | None = None
    in_windows: bool = False


@dataclass(frozen=True, slots=True)
class LowRank:
    """up(norm(down(x)))."""

    down: Linear
    norm: Norm
    up: Linear


@dataclass(frozen=True, slots=True)
class Indexer:
    """The lightning indexer of sparse attention (DeepSeek-V3.2): selects `top_k` keys per token.

    Those with the largest sums over heads of weight * relu(q.k). Queries come from the latent of
    the attention's queries, keys and the weights of heads from the hidden state; the first
    `MlaAttention.rotated` channels are rotated by its frequencies, in a style of their own. Keys
    are kept in a cache group of their own, one head of `dim` channels per token.
    """

    heads: int
    dim: int
    top_k: int
    q: Linear  # [heads * dim, q latent]
    k: Linear  # [dim, hidden]
    k_norm: Norm
    weights: Linear  # [heads, hidden]
    style: RopeStyle
    group: int


@dataclass(frozen=True, slots=True)
class SharedIndexer:
    """The keys that the last layer with an `Indexer` before this one has selected (GLM-5.2)."""


@dataclass(frozen=True, slots=True)
class MlaAttention:
    """Multi-head latent attention: keys and values of all heads come from one latent vector.

    The cache holds [latent | rotated key] per token, one head wide; the values are its first
    `latent` channels. `kv_up` is stored as [heads * (nope + value), latent]. With an indexer it is
    sparse: a token reads the keys that were selected for it.
    """

    heads: int
    nope: int  # channels of a head without positions
    rotated: int  # channels of a head with them
    value: int  # channels of a head's value
    latent: int
    q: Linear | LowRank
    kv_down: Linear  # [latent + rotated, hidden]
    kv_norm: Norm
    kv_up: Linear
    out: Linear
    rope: Rope
    scale: float
    group: int
    indexer: Indexer | SharedIndexer | None = None
