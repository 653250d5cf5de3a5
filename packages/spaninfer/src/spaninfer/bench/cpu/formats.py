"""Weight formats to compare: the engine's options for each, and the peers set beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from spaninfer_kernels_cpu import Format, active_level, micro_kernels

OURS: Final = "spaninfer"

PeerFormat = Literal["BF16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]

# Groups of 32, as those of llama.cpp's formats: scales of whole rows are faster, and less exact.
FORMATS: Final[Mapping[Format, PeerFormat]] = {
    Format("bfloat16"): "BF16",
    Format("int8", 32): "Q8_0",
    Format("int4", 32): "Q4_0",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A configuration of this engine: what records call program and format, and fields of
    EngineConfig.
    """

    program: str
    format: str
    backend: str = "cpu"
    dtype: str | None = None
    quantize: str | None = None
    quantize_group: int | str | None = None

    @property
    def asked(self) -> dict[str, Any]:
        """The fields of EngineConfig that are not left to the engine."""
        fields = asdict(self)
        return {
            name: value
            for name, value in fields.items()
            if name not in ("program", "format") and value is not None
        }


TORCH: Final = Setting("torch eager", "bfloat16", backend="torch", dtype="bfloat16")
"""torch's own operators one by one, weights and activations in bfloat16, in the same engine."""


def name_of(format: Format) -> str:
    """Return a format as records call it.

    >>> name_of(Format("int8", 32)), name_of(Format("bfloat16"))
    ('int8 g32', 'bfloat16')
    """
    return format.kind if format.group is None else f"{format.kind} g{format.group}"


def settings_of(format: Format) -> tuple[Setting, ...]:
    """Return how our engine is timed with weights in a format.

    With bfloat16 weights, activations are float32: rounded to bfloat16, they cost the bundled model
    2.6e-6 nats, and llama.cpp's format costs 1.6e-6. On CPUs that multiply bfloat16 by bfloat16,
    which is faster, both are timed.
    """
    name = name_of(format)
    if format.is_quantised:
        group = "row" if format.group is None else format.group
        return (Setting(OURS, name, quantize=format.kind, quantize_group=group),)
    exact = Setting(OURS, name, dtype="float32")
    if not rounds(format):
        return (exact,)
    return exact, Setting(OURS, f"{name}, activations too", dtype="bfloat16")


def rounds(format: Format) -> bool:
    """True if this CPU multiplies weights of a format by activations that are rounded alike."""
    level = active_level()
    exact, rounded = (micro_kernels(format, rounded=each, level=level) for each in (False, True))
    return exact != rounded
