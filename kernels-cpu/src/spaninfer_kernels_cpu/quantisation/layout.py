"""The memory layout of packed weights, the same for every instruction set.

64 outputs make a panel. A step holds four bytes of each of them, so 256 bytes: one channel in
float32, two in bfloat16, four in int8, eight in int4. A product of one row reads a panel from
front to back; one of many rows reads it 16 outputs (a block) at a time, from the cache.

    panel    group 0 | group 1 | ...
    group    step 0 | step 1 | ... | 64 scales | 64 biases       (both bfloat16; int8 and int4 only)
    step     output 0: 4 bytes | output 1: 4 bytes | ... | output 63: 4 bytes

    int4     the low halves of an output's four bytes are channels 0 1 2 3 of the step, the high
             halves channels 4 5 6 7

A quantised value q stands for (q - offset) * scale + bias, with the offset 128 or 8: InstantQuant's
(q - zero) * scale with the zero point offset - bias / scale. It is unsigned, as instructions want
one factor to be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spaninfer_kernels_cpu.errors import FormatError

LAYOUT = "64 outputs by 256 bytes, 2"
"""Names the order above in files of packed weights; another order takes another name."""

Kind = Literal["float32", "bfloat16", "int8", "int4"]

LANES = 16
BLOCK_BYTES = 64
PANEL = 64
STEP_BYTES = 256
PARAMETER_BYTES = 4 * PANEL  # scales and biases of a group of weights
ROW_PARAMETER_BYTES = 12  # of a group of activations: see `quantize_activations`

CHANNELS_PER_STEP: dict[Kind, int] = {"float32": 1, "bfloat16": 2, "int8": 4, "int4": 8}
STEPS_AT_ONCE: dict[Kind, int] = {"float32": 1, "bfloat16": 1, "int8": 8, "int4": 4}
UNSIGNED_OFFSET: dict[Kind, int] = {"int8": 128, "int4": 8}
GROUPS = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class Format:
    """The kind of the numbers of a packed weight.

    kind      float32, bfloat16, or asymmetric int8 or int4
    group     channels that share a scale and a zero point: 32, 64 or 128; None is a whole row
    """

    kind: Kind
    group: int | None = None

    def __post_init__(self) -> None:
        """Raise unless there is such a format."""
        if self.kind not in CHANNELS_PER_STEP:
            allowed = ", ".join(CHANNELS_PER_STEP)
            raise FormatError(f"format is {self.kind!r}; choose one of {allowed}")
        if self.group is not None and (not self.is_quantised or self.group not in GROUPS):
            raise FormatError(
                f"group is {self.group} for {self.kind}; int8 and int4 take 32, 64, 128 or None "
                "(a whole row), other formats None"
            )

    @property
    def is_quantised(self) -> bool:
        """Whether weights are quantised, and activations are quantised too."""
        return self.kind in UNSIGNED_OFFSET


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes of a packed weight[outputs channels]."""

    format: Format
    outputs: int
    channels: int

    @property
    def panels(self) -> int:
        """Number of panels; the last is filled up with outputs that nobody reads."""
        return _ceil_div(self.outputs, PANEL)

    @property
    def group_channels(self) -> int:
        """Channels of a group; the last group of a row may have fewer."""
        return self.format.group or max(1, self.channels)

    @property
    def groups(self) -> int:
        """Groups of a row."""
        return max(1, _ceil_div(self.channels, self.group_channels))

    @property
    def group_steps(self) -> int:
        """Steps of a group, filled up to as many as kernels take at once."""
        kind = self.format.kind
        at_once = STEPS_AT_ONCE[kind]
        return _ceil_div(self.group_channels, CHANNELS_PER_STEP[kind] * at_once) * at_once

    @property
    def padded_channels(self) -> int:
        """Channels of a group with those that fill it up."""
        return self.group_steps * CHANNELS_PER_STEP[self.format.kind]

    @property
    def group_bytes(self) -> int:
        """Bytes of a group of a panel."""
        return self.group_steps * STEP_BYTES + PARAMETER_BYTES * self.format.is_quantised

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel."""
        return self.groups * self.group_bytes


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
