"""The model tree: frozen nodes without tensors or framework.

A spec file and a config.json resolve to a `Decoder` or an `Encoder`. Every node knows its sizes and
the full checkpoint names of its weights, so names, shapes, tensor-parallel splits, cache groups and
parameter counts are read off the tree (tree.py). What a node computes is said once, in
program/lower.py.

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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from spaninfer_engine.spec.frequencies import Frequencies

if TYPE_CHECKING:
    from spaninfer_engine.spec.delta_nodes import DeltaAttention, StateShape
    from spaninfer_engine.spec.tower_nodes import MediaTokens, Tower

ActivationName = Literal["silu", "gelu", "gelu_tanh", "relu", "quick_gelu"]
GateName: TypeAlias = ActivationName | Literal["clamped_swiglu"]  # of experts
RopeStyle = Literal["half", "interleaved"]
PoolKind = Literal["cls", "max", "mean", "mean_sqrt", "weighted_mean", "last"]
HeadActivation = Literal["identity", "tanh", "gelu", "relu"]


@dataclass(frozen=True, slots=True)
class Weight:
    """One checkpoint tensor, and how tensor parallelism cuts it."""

    name: str
    shape: tuple[int, ...]
    split: int | None = None  # the axis that is cut; None: every rank holds the whole
    parts: tuple[int, ...] = ()  # fused tensors: sizes along `split` that are cut one by one


@dataclass(frozen=True, slots=True)
class Ones:
    """The weight of a norm that has none: no checkpoint stores it."""

    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """What stands for a tensor's name in listings."""
        return "ones"


@dataclass(frozen=True, slots=True)
class Linear:
    """x @ weight.T + bias; x @ weight + bias where it is stored `transposed`."""

    weight: Weight  # [out, in], or [in, out]
    bias: Weight | None = None  # [out]
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Norm:
    """Root-mean-square or layer norm over the last axis."""

    kind: Literal["rms", "layer"]
    eps: float
    weight: Weight | Ones  # [C]
    bias: Weight | None = None
    plus_one: bool = False  # the weight counts from one (Gemma)


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
class Rope:
    """Rotary position embedding over the first `frequencies.dim` channels of a head."""

    style: RopeStyle
    frequencies: Frequencies
    sections: tuple[int, ...] = ()  # M-RoPE: how many frequencies each position axis gets
    interleaved: bool = False  # M-RoPE: t h w t h w ... instead of contiguous sections


@dataclass(frozen=True, slots=True)
class AxialRope:
    """Rotary embedding of two axes: half of a head's pairs turn with the row, half with the column.

    Pair i of dim // 4 on either axis turns by theta ** (-4 i / dim) per place.
    """

    dim: int  # channels of a head, all of them rotated
    theta: float
    style: RopeStyle = "half"


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


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """down(act(gate(x)) * up(x))."""

    gate: Linear
    up: Linear
    down: Linear
    act: ActivationName


@dataclass(frozen=True, slots=True)
class FusedGatedMLP:
    """The same with [gate | up] as one projection, or [up | gate]."""

    gate_up: Linear
    down: Linear
    act: ActivationName
    up_first: bool = False


@dataclass(frozen=True, slots=True)
class PlainMLP:
    """down(act(up(x)))."""

    up: Linear
    down: Linear
    act: ActivationName


@dataclass(frozen=True, slots=True)
class Scores:
    """The routing function: from router logits to a few weighted experts."""

    kind: Literal["softmax", "sigmoid"]
    top_k: int
    normalise: bool
    scale: float = 1.0
    groups: int = 1
    group_topk: int = 1
    group_score: Literal["max", "top2"] = "max"


@dataclass(frozen=True, slots=True)
class EachExpert:
    """One tensor per expert and projection."""

    gate: tuple[Weight, ...]  # [inner, hidden] each
    up: tuple[Weight, ...]
    down: tuple[Weight, ...]  # [hidden, inner] each


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """Experts in two tensors: "oi" is [E, 2I, H] and [E, H, I], "io" [E, H, 2I] and [E, I, H]."""

    gate_up: Weight
    down: Weight
    layout: Literal["oi", "io"]
    in_turn: bool = False  # rows of gate and up take turns, instead of [gate | up]
    gate_up_bias: Weight | None = None  # [E, 2I], in the order of gate_up
    down_bias: Weight | None = None  # [E, H]


@dataclass(frozen=True, slots=True)
class RoutedMLP:
    """A router that sends each token to a few of many gated MLPs."""

    router: Linear
    correction: Weight | None  # [E] or [1, E]: added to scores for the choice, not for the weights
    scores: Scores
    experts: EachExpert | StackedExperts
    act: GateName
    input_scaled: bool = False  # the share of the one chosen scales its input instead (Llama 4)
    shared: GatedMLP | FusedGatedMLP | None = None
    shared_gate: Linear | None = None  # its sigmoid scales the shared MLP


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
    key_dim: int
    value_dim: int
    values_in_keys: bool = False  # MLA: values are the first value_dim channels of the keys
    window: int | None = None
    state: StateShape | None = None

    @property
    def is_index(self) -> bool:
        """True if these are an indexer's keys: there are no values."""
        return self.values_in_keys and self.value_dim == self.key_dim

    @property
    def rotary_dim(self) -> int:
        """The channels of keys behind values that lie in them."""
        return self.key_dim - self.value_dim if self.values_in_keys else 0


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
class Pool:
    """The hidden states of a text become its vector, which a caller gets normalised or as it is.

    Of several kinds, the vectors are put side by side.
    """

    kinds: tuple[PoolKind, ...]
    normalise: bool  # to length 1, where the caller says nothing


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """norm(act(linear(x))) of a pooled vector."""

    linear: Linear
    act: HeadActivation = "identity"
    norm: Norm | None = None

    @property
    def width(self) -> int:
        """Channels of its rows."""
        return self.linear.weight.shape[0]


@dataclass(frozen=True, slots=True)
class LogitScore:
    """The logit of one token behind a pooled vector, less that of another: [N 1].

    So decoders say how well a document fits a query: by "yes" and "no" (Qwen3-Reranker).
    """

    head: Linear  # [V, C], of which these rows are read
    true_id: int
    false_id: int | None = None

    @property
    def width(self) -> int:
        """Channels of its rows."""
        return 1


@dataclass(frozen=True, slots=True)
class Labels:
    """The names of a classifier's logits, and what its probabilities are made by."""

    names: tuple[str, ...]
    activation: Literal["sigmoid", "softmax", "identity"]


@dataclass(frozen=True, slots=True)
class PairPrompt:
    """How a chat template is asked for the prompt of a query and a document."""

    instruction: str = ""  # the system's message, if any
    add_generation_prompt: bool = False


@dataclass(frozen=True, slots=True)
class TextSettings:
    """Preprocessing of a text before it is tokenised."""

    lower_case: bool = False
    prompts: tuple[tuple[str, str], ...] = ()  # put in front of texts, by name
    default_prompt: str | None = None  # the name of the one that is meant unasked
    pairs: PairPrompt | None = None  # pairs are rendered by the chat template


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
    text: TextSettings = TextSettings()
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
