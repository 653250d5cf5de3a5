"""The model tree: frozen nodes without tensors or framework.

A spec file and a config.json resolve to a `Decoder` or an `Encoder`. Every node knows its sizes and
the full checkpoint names of its weights, so names, shapes, tensor-parallel splits, cache groups and
parameter counts are read off the tree (tree.py). What a node computes is said once, in
program/lower.py and the files beside it. Other nodes: weight_nodes.py, attention_nodes.py,
mlp_nodes.py, pooling_nodes.py, tower_nodes.py.

Decoder
├── Embedding        table, scale, Learned | Sinusoidal positions, norm, projection
├── Layer ...        one per layer; equal layers differ only in their weights' names
│   ├── Attention | MlaAttention (Indexer) | DeltaAttention (delta_nodes.py)
│   ├── GatedMLP | FusedGatedMLP | PlainMLP | RoutedMLP
│   └── norms before, behind and after each of the two; parallel; residual scale
├── Norm             the final one
├── Head             projection, scale, softcap, normalised rows
├── CacheGroup ...   layers whose spans share numbers
└── Tower ...        from images, videos and audio to hidden states (tower_nodes.py)

Encoder
├── Embedding        the same, and token types
├── Layer ...        with RaggedAttention
├── Norm             the final one
├── Pool             from the hidden states of a text to its vector
└── HeadLayer ...    from there to the rows that callers get: Dense layers, a classifier's, or a
                     LogitScore
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from spaninfer_engine.spec.attention_nodes import Attention, MlaAttention, RaggedAttention, Rope
from spaninfer_engine.spec.mlp_nodes import FusedGatedMLP, GatedMLP, PlainMLP, RoutedMLP
from spaninfer_engine.spec.pooling_nodes import HeadLayer, Labels, LogitScore, Pool, TextSettings
from spaninfer_engine.spec.weight_nodes import Linear, Norm, Weight

if TYPE_CHECKING:
    from spaninfer_engine.spec.delta_nodes import DeltaAttention, StateShape
    from spaninfer_engine.spec.tower_nodes import MediaTokens, Tower


@dataclass(frozen=True, slots=True)
class Learned:
    """A table of one row per position."""

    table: Weight
    offset: int


@dataclass(frozen=True, slots=True)
class Sinusoidal:
    """[sin | cos] of position times ln-spaced frequencies; no weights."""

    dim: int
    offset: int


@dataclass(frozen=True, slots=True)
class Embedding:
    """One row per token, scaled; positions, token types and a norm may follow, in that order.

    A projection comes first where it exists (OPT-350m projects, then adds positions). A token has
    the first type, in the second text of a pair the second one.
    """

    table: Weight  # [V, C]
    scale: float = 1.0
    project: Linear | None = None
    positions: Learned | Sinusoidal | None = None
    types: Weight | None = None  # [types, C]
    norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class Norms:
    """The norms of a layer. pre: of the input; post: of the output, before it is added;
    after: of the sum."""

    attention_pre: Norm | None = None
    attention_post: Norm | None = None
    attention_after: Norm | None = None
    mlp_pre: Norm | None = None
    mlp_post: Norm | None = None
    mlp_after: Norm | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention and MLP around a residual stream.

    parallel: x + attention(n1(x)) + mlp(n2(x)), where n2 is `mlp_pre`, or n1 where that is None.
    """

    attention: Attention | MlaAttention | DeltaAttention | RaggedAttention
    mlp: GatedMLP | FusedGatedMLP | PlainMLP | RoutedMLP
    norms: Norms
    parallel: bool = False
    residual_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Head:
    """Hidden states to logits: projection, rows times hidden, bias, scale, softcap, in order."""

    linear: Linear  # tied: the weight is the embedding's table
    tied: bool = False
    project: Linear | None = None
    scale: float = 1.0
    softcap: float | None = None
    normalise: bool = False  # rows divided by their L2 norm (Baichuan2)


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share span numbers: equal KV shape and window.

    Indexers keep their keys in a group of their own, without values. Layers with a `state` have
    neither: a span is what all of them keep of a sequence behind one of its tokens.
    """

    index: int
    layers: tuple[int, ...]
    kv_heads: int
    key_size: int
    value_size: int
    values_in_keys: bool = False  # MLA: values are the first value_size channels of the keys
    window: int | None = None
    state: StateShape | None = None

    @property
    def is_index(self) -> bool:
        """True if these are an indexer's keys: there are no values."""
        return self.values_in_keys and self.value_size == self.key_size

    @property
    def rotary_dim(self) -> int:
        """The channels of keys behind values that lie in them."""
        return self.key_size - self.value_size if self.values_in_keys else 0


@dataclass(frozen=True, slots=True)
class Decoder:
    """Tokens in, logits out."""

    architecture: str
    vocab: int
    hidden: int
    max_len: int  # positions the checkpoint was made for
    embedding: Embedding
    layers: tuple[Layer, ...]
    norm: Norm | None
    head: Head
    groups: tuple[CacheGroup, ...]
    surplus: tuple[str, ...] = ()  # patterns of stored tensors that the model does not use
    towers: tuple[Tower, ...] = ()  # from media to hidden states of tokens
    media: MediaTokens | None = None  # the tokens that stand for media, where there are towers

    def frequency_state(self, length: int) -> tuple[tuple[int, ...], ...]:
        """Return what about a request's length changes its keys, over all layers; () if nothing."""
        states = {rope.frequencies.state(length) for rope in ropes(self)}
        return tuple(sorted(state for state in states if state))


@dataclass(frozen=True, slots=True)
class Encoder:
    """Texts in, a vector for each out."""

    architecture: str
    vocab: int
    hidden: int
    max_len: int  # tokens of a text that the checkpoint was made for
    embedding: Embedding
    layers: tuple[Layer, ...]
    norm: Norm | None
    pool: Pool
    head: tuple[HeadLayer | LogitScore, ...] = ()  # what follows the pooling
    labels: Labels | None = None  # of a classifier: what its head's rows are
    text: TextSettings = field(default_factory=TextSettings)
    surplus: tuple[str, ...] = ()  # patterns of stored tensors that the model does not use

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        """Return no cache groups: nothing outlives a step."""
        return ()

    @property
    def width(self) -> int:
        """Channels of the rows that callers get."""
        if self.head:
            return self.head[-1].width
        return self.hidden * len(self.pool.kinds)


Model: TypeAlias = Decoder | Encoder


def ropes(model: Model) -> tuple[Rope, ...]:
    """Return the different rotary embeddings of a model, in layer order."""
    return tuple(dict.fromkeys(filter(None, (_rope(layer.attention) for layer in model.layers))))


def _rope(attention: Attention | MlaAttention | DeltaAttention | RaggedAttention) -> Rope | None:
    match attention:
        case MlaAttention(rope=rope):
            return rope
        case Attention(positions=Rope() as rope) | RaggedAttention(positions=Rope() as rope):
            return rope
        case _:
            return None
