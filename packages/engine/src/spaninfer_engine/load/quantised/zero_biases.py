"""Biases of quantised modules that add nothing: AutoGPTQ writes one for each, full of zeros, also
where the model has none (Qwen v1).
"""

from __future__ import annotations

from spaninfer_engine.load.tensors.reader import WeightReader

_BIAS = ".bias"


def is_zero_bias(reader: WeightReader, name: str) -> bool:
    """Return True for the bias of a quantised module whose numbers are all exactly zero."""
    weight = name.removesuffix(_BIAS) + ".weight"
    if not name.endswith(_BIAS) or weight not in reader.names:
        return False
    return reader.quantized(weight) is not None and not reader.read(name).any()
