"""Quantised modules of a Hugging Face folder, as one weight each.

What a module is is decided by the tensors that it has, not by the config's lists of what was left
alone, which are wrong often enough. The config decides what tensors cannot say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from spaninfer_engine.errors import ConfigError, shown
from spaninfer_engine.load.quantised.awq import read_awq
from spaninfer_engine.load.quantised.bitsandbytes import KINDS, STATE, read_4bit, read_8bit
from spaninfer_engine.load.quantised.compressed_tensors import read_int8, read_packed
from spaninfer_engine.load.quantised.fp4 import read_fp4, read_mxfp4_experts
from spaninfer_engine.load.quantised.fp8 import read_fp8
from spaninfer_engine.load.quantised.gptq import read_gptq
from spaninfer_engine.load.quantised.kv_scales import KV_CACHE, check_kv_scales
from spaninfer_engine.load.quantised.module import Module
from spaninfer_engine.load.tensors.dtype import FLOATS, checkpoint_dtype
from spaninfer_engine.load.tensors.quantised import QuantizedEntry

Read = Callable[[Module], QuantizedEntry]

KEYS = ("quantization_config", "compression_config")
METHODS = (
    *("gptq", "awq", "auto-round", "compressed-tensors", "fp8", "fbgemm_fp8", "modelopt"),
    *("modelopt_fp4", "mxfp4", "bitsandbytes"),
)
"""The values of quant_method that are read."""

_OF_ACTIVATIONS = (
    *("input_scale", "input_global_scale", "input_zero_point", "activation_scale"),
    "input_scale_ub",
)
UNUSED = KV_CACHE.union(_OF_ACTIVATIONS)
"""Tensors that weights do without: activations keep 16 bits or more, or get scales of their own
when they are quantised, and the KV cache has a scale per token and head."""

_E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
_PARTS = re.compile(r"(?P<module>.+?)\.(?P<suffix>weight(\.\w+)+|[^.]+)")
_EXPERTS = re.compile(r"(?P<module>.+)(?P<suffix>_blocks|_scales)")


def quantization_settings(source: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a config.json says about quantisation, empty where it says nothing.

    ConfigError for a method that is not read.
    """
    text_config = config.get("text_config")
    for part in (config, text_config if isinstance(text_config, Mapping) else {}):
        for key in KEYS:
            if settings := part.get(key):
                return _checked(source, key, settings)
    return {}


def _checked(source: str, key: str, settings: Any) -> Mapping[str, Any]:
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{source}: {key} is {shown(settings)}; it must be an object")
    method = settings.get("quant_method")
    if method is None:  # ModelOpt leaves it out in some files
        method = "modelopt" if "quant_algo" in settings else "compressed-tensors"
    if method not in METHODS:
        raise ConfigError(
            f"{source}: config.json has {key} with quant_method {shown(method)}; supported "
            f"are {', '.join(METHODS)}; use the model in one of these, or in 16 bits"
        )
    return {**settings, "quant_method": method}


def with_quantised(
    source: str, entries: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the entries of a checkpoint with one per quantised weight in place of its parts.

    ConfigError and CheckpointError name the module of which something is unknown or missing.
    """
    settings = quantization_settings(source, config)
    if settings:
        check_kv_scales(source, entries)
    dtype = FLOATS.get(checkpoint_dtype(config), FLOATS["float32"])
    made: dict[str, Any] = {}
    for name, tensors in _by_module(entries).items():
        module = Module(source, name, tensors, dtype, settings)
        found = _reader(module)
        if found is None:
            made |= {_full(name, suffix): tensor for suffix, tensor in tensors.items()}
            continue
        read, weight, parts = found
        made[weight] = read(module)
        rest = {suffix: each for suffix, each in tensors.items() if suffix not in parts}
        made |= {_full(name, suffix): each for suffix, each in rest.items()}
    return {name: each for name, each in made.items() if not _is_unused(name, settings)}


def _is_unused(name: str, settings: Mapping[str, Any]) -> bool:
    return bool(settings) and name.rpartition(".")[2] in UNUSED


def _by_module(entries: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return tensors by module, and there by the rest of their names."""
    modules: dict[str, dict[str, Any]] = {}
    for name, entry in entries.items():
        found = _EXPERTS.fullmatch(name)
        if found and {f"{found['module']}_blocks", f"{found['module']}_scales"} <= entries.keys():
            modules.setdefault(found["module"], {})[found["suffix"]] = entry
            continue
        parts = _PARTS.fullmatch(name) if ".weight." in name else None
        module, suffix = (parts["module"], parts["suffix"]) if parts else _split(name)
        modules.setdefault(module, {})[suffix] = entry
    return modules


def _split(name: str) -> tuple[str, str]:
    module, _, suffix = name.rpartition(".")
    return module, suffix


def _full(module: str, suffix: str) -> str:
    return f"{module}.{suffix}" if module else suffix


def _reader(module: Module) -> tuple[Read, str, frozenset[str]] | None:
    """Return what reads a module, the name of its weight, and the tensors that make it up."""
    weight = f"{module.name}.weight"
    if "qweight" in module:
        return _of_qweight(module), weight, frozenset(("qweight", "qzeros", "scales", "g_idx"))
    if "weight_packed" in module:
        return _of_packed(module), weight, _PACKED
    if "_blocks" in module:
        return read_mxfp4_experts, module.name, frozenset(("_blocks", "_scales"))
    if "weight" not in module:
        return None
    read = _of_weight(module)
    return None if read is None else (read, weight, _parts_beside_weight(module))


_PACKED = frozenset(
    {
        *("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"),
        "weight_global_scale",
    }
)


def _of_qweight(module: Module) -> Read:
    """GPTQ and AWQ share names of tensors and no more, so the config must say which it is."""
    method = module.settings.get("quant_method")
    if method not in ("gptq", "awq", "auto-round"):
        raise module.error(
            "it has qweight, and no quantization_config says whether of quant_method gptq or awq; "
            "add it to config.json"
        )
    packing = str(module.settings.get("packing_format", method))
    return read_awq if packing.endswith("awq") else read_gptq


def _of_packed(module: Module) -> Read:
    return read_fp4 if module.type("weight_packed") == np.uint8 else read_packed


def _of_weight(module: Module) -> Read | None:
    """Return what reads a module by its weight's number format and what lies beside it."""
    dtype = module.type("weight")
    if any(STATE + kind in module for kind in KINDS):
        return read_4bit
    if "SCB" in module:
        return read_8bit
    if dtype == _E4M3 and ("weight_scale_inv" in module or "weight_scale" in module):
        return read_fp8
    if dtype == np.int8 and "weight_scale" in module:
        return read_int8
    if dtype == np.uint8 and "weight_scale" in module:
        return read_fp4
    return None


def _parts_beside_weight(module: Module) -> frozenset[str]:
    known = ("weight_scale", "weight_scale_inv", "weight_scale_2", "weight_zero_point")
    of_state = [suffix for suffix in module.tensors if suffix.startswith("weight.")]
    return frozenset(("weight", *known, "SCB", "weight_format", *of_state))
