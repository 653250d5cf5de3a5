"""A checkpoint becomes a folder of 8-bit codes as they are published: for every backend.

What is rounded are the weights that backend cuda would round while loading, but for the output
head, which published models keep in 16 bits. A tensor at a time is in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.errors import ConfigError
from spaninfer_engine.load import Checkpoint
from spaninfer_engine.load.containers.safetensors import Described, write_streamed
from spaninfer_engine.load.packed.tensor_error import ErrorSums, TensorError
from spaninfer_engine.load.quantised.checkpoint import KEYS
from spaninfer_engine.load.quantised.rounded_rows import (
    CODES,
    SCALE,
    Scheme,
    round_rows,
    settings_of,
)
from spaninfer_engine.load.tensors.reader import WeightReader
from spaninfer_engine.ops.operation import GroupedRows, Operation, TakenApart, Use
from spaninfer_engine.program.lower import lower
from spaninfer_engine.spec import Decoder

WEIGHTS_FILE = "model.safetensors"
SAMPLED_ROWS = 2048
"""Rows of a tensor that are compared, evenly spaced: they give its error to a percent of it."""

_SUFFIX = ".weight"
_COLUMN_GRAIN = 16  # of weights whose codes GPUs multiply by
_ROUNDED = {"linear": ("weight",), "experts": ("gate", "up", "gate_up", "down")}

Report = Callable[[TensorError], None]


def rounded_names(decoder: Decoder) -> frozenset[str]:
    """Return the names of the weights that are rounded; ConfigError where some cannot be."""
    head = decoder.head.linear.weight.name
    rounded, kept = set[str](), {head}
    for operation in lower(decoder).operations:
        for use in operation.weights:
            names = {tensor.name for tensor in use.tensors} - {head}
            if not _is_rounded(operation, use):
                kept |= names
            elif names:
                _check(use, decoder)
                rounded |= names
    return frozenset(rounded - kept)


def _is_rounded(operation: Operation, use: Use) -> bool:
    return use.argument in _ROUNDED.get(operation.operator, ()) and (
        use.tensors[0].shape[-1] % _COLUMN_GRAIN == 0
    )


def _check(use: Use, decoder: Decoder) -> None:
    """Refuse weights whose rows are none of the file's."""
    tensor = use.tensors[0]
    is_by_row = use.view is None or isinstance(use.view, TakenApart | GroupedRows)
    if len(tensor.shape) == 2 and is_by_row and tensor.name.endswith(_SUFFIX):
        return
    raise ConfigError(
        f"{decoder.architecture}: {tensor.name} {list(tensor.shape)} is no weight[out, in] of a "
        "linear module, and 8-bit codes are published of these alone; keep the original, and give "
        "--quantize at every start"
    )


@dataclass(frozen=True, slots=True)
class RoundedWeights:
    """The tensors of a checkpoint, those called `rounded` as codes of a scheme."""

    reader: WeightReader
    rounded: frozenset[str]
    scheme: Scheme

    def described(self) -> dict[str, Described]:
        """Return number format and shape of every tensor of the file, in its order."""
        found = dict[str, Described]()
        for name in self._names():
            shape = self.reader.shape(name)
            if name in self.rounded:
                found[name] = CODES[self.scheme], shape
                found[_scale_name(name)] = SCALE, (shape[0], 1)
            else:
                found[name] = self.reader.dtype(name), shape
        return found

    def arrays(
        self, progress: Callable[[int, int], None], report: Report | None
    ) -> Iterator[NDArray[Any]]:
        """Yield the tensors in this order."""
        names = self._names()
        for done, name in enumerate(names):
            progress(done, len(names))
            array = self.reader.read(name)
            if name not in self.rounded:
                yield np.ascontiguousarray(array)
                continue
            codes, scales = round_rows(array, self.scheme)
            if report is not None:
                report(_error_of(name, array, codes, scales))
            yield codes
            yield scales
        progress(len(names), len(names))

    def settings(self) -> dict[str, Any]:
        """Return the `quantization_config` of the file."""
        others = self.reader.names - self.rounded
        modules = {name.removesuffix(_SUFFIX) for name in others if name.endswith(_SUFFIX)}
        is_matrix = {name for name in modules if len(self.reader.shape(name + _SUFFIX)) > 1}
        return settings_of(self.scheme, is_matrix)

    def _names(self) -> list[str]:
        """Return the names of tensors, those of the largest numbers first: all are aligned then."""

        def num_bytes(name: str) -> int:
            return 1 if name in self.rounded else self.reader.dtype(name).itemsize

        return sorted(self.reader.names, key=lambda name: (-num_bytes(name), name))


def write_rounded(
    folder: Path,
    checkpoint: Checkpoint,
    weights: RoundedWeights,
    progress: Callable[[int, int], None],
    report: Report | None,
) -> None:
    """Write the weights and their config.json into a folder. OSError as writing raises it."""
    arrays = weights.arrays(progress, report)
    write_streamed(folder / WEIGHTS_FILE, weights.described(), arrays, {"format": "pt"})
    config = _without_settings(checkpoint.config) | {"quantization_config": weights.settings()}
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def _without_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config that says nothing of quantisation, in its part of the text neither."""
    rest = {key: value for key, value in config.items() if key not in KEYS}
    if isinstance(part := rest.get("text_config"), Mapping):
        rest["text_config"] = {key: value for key, value in part.items() if key not in KEYS}
    return rest


def _scale_name(name: str) -> str:
    return f"{name}_scale"


def _error_of(
    name: str, array: NDArray[Any], codes: NDArray[Any], scales: NDArray[np.float32]
) -> TensorError:
    count = min(len(array), SAMPLED_ROWS)
    rows = np.arange(count) * len(array) // count
    sums = ErrorSums()
    sums.add(array[rows].astype(np.float64), codes[rows].astype(np.float64) * scales[rows])
    return sums.of(name, array.shape, 8 + SCALE.itemsize * 8 / array.shape[1])
