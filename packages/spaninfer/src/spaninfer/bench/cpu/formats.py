"""What weights are kept in, and which format of llama.cpp is set beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from spaninfer_kernels_cpu import Format

PeerFormat = Literal["BF16", "Q8_0", "Q4_0"]

# Groups of 32, as those of llama.cpp's formats: scales of whole rows are faster, and less exact.
FORMATS: Final[Mapping[Format, PeerFormat]] = {
    Format("bfloat16"): "BF16",
    Format("int8", 32): "Q8_0",
    Format("int4", 32): "Q4_0",
}


def name_of(format: Format) -> str:
    """Return a format as records call it.

    >>> name_of(Format("int8", 32)), name_of(Format("bfloat16"))
    ('int8 g32', 'bfloat16')
    """
    return format.kind if format.group is None else f"{format.kind} g{format.group}"


def options_of(format: Format) -> dict[str, Any]:
    """Return the fields of EngineConfig that have an engine keep weights in a format.

    bfloat16 weights keep activations in float32: rounded to bfloat16, they cost the bundled model
    1.5e-6 nats on CPUs that multiply both so, and llama.cpp's format costs 0.9e-6.
    """
    if not format.has_codes:
        return {"dtype": "float32"}
    return {"quantize": format.kind, "quantize_group": format.group}
