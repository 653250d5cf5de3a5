"""The node of the gated delta rule: linear attention that keeps a state in place of keys."""

from __future__ import annotations

from dataclasses import dataclass

from spaninfer_engine.spec.weight_nodes import Linear, Norm, Weight


@dataclass(frozen=True, slots=True)
class StateShape:
    """The state of a sequence in a layer of linear attention, in float32 whatever the KV dtype.

    The last `inputs` rows of `channels` in front of its convolution, and a matrix [key_size
    value_size] per head: errors of fewer bits would add up over the length of a text.
    """

    inputs: int
    channels: int
    heads: int
    key_size: int
    value_size: int

    @property
    def conv_numbers(self) -> int:
        """Numbers of the inputs of one layer."""
        return self.inputs * self.channels

    @property
    def numbers(self) -> int:
        """Numbers that one layer keeps."""
        return self.conv_numbers + self.heads * self.key_size * self.value_size


@dataclass(frozen=True, slots=True)
class SplitDelta:
    """Four projections: [q | k | v], the output's gate z, b and a."""

    qkv: Linear
    z: Linear
    b: Linear
    a: Linear


@dataclass(frozen=True, slots=True)
class GroupedDelta:
    """Two projections: [q, k, v * ratio, z * ratio] and [b * ratio, a * ratio] per key head."""

    qkvz: Linear
    ba: Linear


@dataclass(frozen=True, slots=True)
class DeltaAttention:
    """Linear attention by the gated delta rule (Yang et al. 2024), behind a causal convolution.

    out(norm(o) * silu(z)), where o is what the states of `value_heads` say of their queries;
    `key_heads` of queries and keys are shared by as many value heads each.
    """

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    projections: SplitDelta | GroupedDelta
    conv: Weight  # [channels, 1, taps]
    a_log: Weight  # [value heads]
    dt_bias: Weight  # [value heads]
    norm: Norm  # of a value head
    out: Linear
    group: int  # index into Decoder.groups

    @property
    def keys(self) -> int:
        """Channels of all queries, and of all keys."""
        return self.key_heads * self.key_size

    @property
    def values(self) -> int:
        """Channels of all values."""
        return self.value_heads * self.value_size

    @property
    def taps(self) -> int:
        """Inputs that the convolution sums."""
        return self.conv.shape[2]

    @property
    def state(self) -> StateShape:
        """The shape of the state that it keeps of a sequence."""
        channels = 2 * self.keys + self.values
        return StateShape(self.taps - 1, channels, self.value_heads, self.key_size, self.value_size)
