"""The values of options that no machine and no model could satisfy."""

from __future__ import annotations

from spaninfer_engine.backends.backend import MAX_SPAN_LEN
from spaninfer_engine.backends.registry import BACKENDS, device_named
from spaninfer_engine.config import (
    DTYPES,
    KV_DTYPES,
    QUANTIZE,
    QUANTIZE_GROUPS,
    WEIGHTS,
    EngineConfig,
)
from spaninfer_engine.errors import ConfigError, shown
from spaninfer_engine.nearest import did_you_mean

_KNOWN = {
    "backend": tuple(BACKENDS),
    "dtype": DTYPES,
    "kv_dtype": KV_DTYPES,
    "weights": WEIGHTS,
    "quantize": QUANTIZE,
    "quantize_group": QUANTIZE_GROUPS,
}
_COUNTS = ("max_len", "span_len", "memory", "max_running", "step_tokens", "max_waiting")
_MAX_SEED = 2**64 - 1


def check_values(asked: EngineConfig) -> None:
    """Raise ConfigError for the first value that is none of those allowed."""
    for name in _KNOWN:
        _check_known(name, getattr(asked, name))
    device_named(asked.device)
    if not isinstance(asked.served_name, str | None):
        raise ConfigError(f"served_name is {shown(asked.served_name)}; allowed is a string")
    for name in _COUNTS:
        value = asked.memory_bytes if name == "memory" else getattr(asked, name)
        if value is not None and not (_is_whole(value) and value >= 1):
            raise ConfigError(f"{name} is {shown(value)}; allowed is a whole number, 1 or more")
    if not (_is_whole(asked.seed) and 0 <= asked.seed <= _MAX_SEED):
        raise ConfigError(
            f"seed is {shown(asked.seed)}; allowed is a whole number from 0 to {_MAX_SEED}"
        )
    _check_timeout(asked.step_timeout_s)
    if asked.span_len is not None and asked.span_len > MAX_SPAN_LEN:
        raise ConfigError(f"span_len is {asked.span_len}; allowed is 1 to {MAX_SPAN_LEN}")


def _check_known(name: str, value: object) -> None:
    known = _KNOWN[name]
    if value is not None and value not in known:
        near = did_you_mean(str(value).lower(), map(str, known))
        raise ConfigError(
            f"{name} is {shown(value)}; allowed are {', '.join(map(str, known))}{near}"
        )


def _check_timeout(seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise ConfigError(f"step_timeout is {shown(seconds)} seconds; allowed is a number above 0")


def _is_whole(value: object) -> bool:
    """Return True for whole numbers of Python and of numpy; True and False are none."""
    return hasattr(value, "__index__") and not isinstance(value, bool)
