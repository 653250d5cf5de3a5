"""The nodes of models that return vectors: pooling, layers behind it, labels, text settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spaninfer_engine.spec.weight_nodes import Linear, Norm

PoolKind = Literal["cls", "max", "mean", "mean_sqrt", "weighted_mean", "last"]
PoolToken = Literal["first", "last"]
HeadActivation = Literal["identity", "tanh", "gelu", "relu"]


@dataclass(frozen=True, slots=True)
class Pool:
    """The hidden states of a text become its vector, which a caller gets normalised or as it is.

    Of several kinds, the vectors are put side by side.
    """

    kinds: tuple[PoolKind, ...]
    normalise: bool  # to length 1, where the caller says nothing

    @property
    def token(self) -> PoolToken | None:
        """The token whose hidden state is a text's vector; None where it is no single one's."""
        tokens: dict[tuple[PoolKind, ...], PoolToken] = {("cls",): "first", ("last",): "last"}
        return tokens.get(self.kinds)


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
    """The call of a chat template that makes the prompt of a query and a document."""

    instruction: str = ""  # the system's message, if any
    add_generation_prompt: bool = False


@dataclass(frozen=True, slots=True)
class TextSettings:
    """Preprocessing of a text before it is tokenised."""

    lower_case: bool = False
    prompts: tuple[tuple[str, str], ...] = ()  # put in front of texts, by name
    default_prompt: str | None = None  # the name of the one that is meant unasked
    pairs: PairPrompt | None = None  # pairs are rendered by the chat template
