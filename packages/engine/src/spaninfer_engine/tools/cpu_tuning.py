"""Tuning of the CPU backend's kernels for a model, apart from its start, for people to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spaninfer_engine.config import EngineConfig
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.load.packed.file import PackedReader
from spaninfer_engine.load.packed.packing import as_packed
from spaninfer_engine.program.bind import bind_packed
from spaninfer_engine.program.lower import lower
from spaninfer_engine.program.packer import Packer
from spaninfer_engine.startup.build import mapped, open_on_cpu
from spaninfer_engine.startup.model import locate
from spaninfer_engine.startup.progress import Progress, silent, stage_of
from spaninfer_engine.startup.shortage import refuse_narrow_address_space, shortage_named


@dataclass(frozen=True, slots=True)
class TuningRow:
    """One candidate for the weights of a format.

    `seconds` of GEMMs by rows; None of one that did not fit into the budget, or whose results
    were others. `is_default`: what runs without tuning.
    """

    format: str
    name: str
    seconds: Mapping[int, float] | None
    is_default: bool
    for_few: bool  # rows it is chosen
    for_many: bool


@dataclass(frozen=True, slots=True)
class Tuning:
    """The candidates of every format; and by threads the times of those chosen for most weights."""

    rows: tuple[TuningRow, ...]
    threads: Mapping[int, Mapping[int, float]]


@shortage_named()
def tune(asked: EngineConfig, progress: Progress = silent) -> Tuning:
    """Time the kernels of backend cpu on the weights of a model, and remember the times.

    Later starts with the same weights use them. Raises ConfigError for what was asked,
    CheckpointError for what is on disk.
    """
    refuse_narrow_address_space()
    path, _ = locate(asked.model)
    with open_checkpoint(path) as checkpoint:
        reader = checkpoint.reader
        if isinstance(reader, PackedReader):
            asked = as_packed(asked, reader.packing)
        decoder, opened = open_on_cpu(asked, checkpoint)
        ops: Any = opened
        pack = mapped(reader) if isinstance(reader, PackedReader) else Packer(ops, reader)
        bind_packed(lower(decoder), ops, pack, stage_of(progress, "weights"))
        tuned, threads = ops.time_kernels(stage_of(progress, "tuning"))
    return Tuning(tuple(row for each in tuned for row in _rows(each)), threads)


def _rows(tuned: Any) -> list[TuningRow]:
    """Return the candidates of a `spaninfer_kernels_cpu.Tuned`."""
    choice, default = tuned.choice, tuned.found[0].name
    return [
        TuningRow(
            _title(tuned.format),
            each.name,
            tuned.seconds.get(each.name),
            is_default=each.name == default,
            for_few=each == choice.few,
            for_many=each == choice.many,
        )
        for each in tuned.found
    ]


def _title(format: Any) -> str:
    """Return a `spaninfer_kernels_cpu.Format` in words."""
    if format.codes is None:
        return str(format.kind)
    group = "rows" if format.group is None else f"groups of {format.group}"
    kind = format.kind if format.form is None else f"codes of {format.codes.bits} bits"
    return f"{kind}, {group}"
