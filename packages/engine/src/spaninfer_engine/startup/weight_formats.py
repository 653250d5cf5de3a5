"""Reports of how quantised weights were loaded, for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from spaninfer_op_reference import WeightFormat

from spaninfer_engine.config import Decision
from spaninfer_engine.load.packed.file import PackedReader
from spaninfer_engine.load.tensors.reader import WeightReader
from spaninfer_engine.program.packer import PackedUse


def formats_of(reader: WeightReader) -> dict[str, WeightFormat]:
    """Return the formats of the weights that a checkpoint holds quantised, by name."""
    if isinstance(reader, PackedReader):
        return dict(reader.contents.formats)
    found = {name: reader.quantized(name) for name in reader.names}
    return {name: entry.format for name, entry in found.items() if entry is not None}


def describe_formats(
    packed: Sequence[PackedUse], activations_of: Callable[[WeightFormat], str]
) -> list[Decision]:
    """Return the formats, and how much memory they take as codes and expanded; none of none.

    Codes of a format are multiplied by `activations_of` it.
    """
    if not packed:
        return []
    expanded = [use for use in packed if use.is_expanded]
    kept = defaultdict(list)
    for use in packed:
        if not use.is_expanded:
            kept[" and ".join(sorted(set(map(activations_of, use.formats))))].append(use)
    parts = [
        f"{_names(uses)} multiplied as codes by {activations}: {_bytes(uses)}"
        for activations, uses in kept.items()
    ]
    if expanded:
        parts.append(f"{_names(expanded)} expanded while loading: {_bytes(expanded)}")
    return [Decision("weight format", _names(packed), "; ".join(parts))]


def _names(packed: Iterable[PackedUse]) -> str:
    return ", ".join(sorted({str(format) for use in packed for format in use.formats}))


def _bytes(packed: Sequence[PackedUse]) -> str:
    held, stored = sum(use.num_bytes for use in packed), sum(use.stored_bytes for use in packed)
    return f"{held / 2**20:,.1f} MiB for {stored / 2**20:,.1f} in the file"
