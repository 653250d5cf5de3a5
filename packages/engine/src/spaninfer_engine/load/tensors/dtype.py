"""The names that containers give to number formats, and the numpy types they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

SAFETENSORS: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
"""Number formats of safetensors headers; all are little-endian."""

FLOATS: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
"""What models are computed in, by the names in config.json."""


def checkpoint_dtype(config: Mapping[str, Any]) -> str:
    """Return the dtype that a config.json names, in either of its spellings; float32 if none."""
    text_config = config.get("text_config")
    for part in (config, text_config if isinstance(text_config, dict) else {}):
        for key in ("dtype", "torch_dtype"):
            if isinstance(said := part.get(key), str):
                return said.removeprefix("torch.")
    return "float32"
