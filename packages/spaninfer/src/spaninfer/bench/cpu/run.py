"""All of `spaninfer bench cpu`: the limits first, then kernels beside them, then the engine."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spaninfer_kernels_cpu import compile_all

from spaninfer.bench.cpu.case import timed
from spaninfer.bench.cpu.engine import measure_engine
from spaninfer.bench.cpu.formats import FORMATS
from spaninfer.bench.cpu.kernels import KERNELS
from spaninfer.bench.cpu.limits import measure_limits, records
from spaninfer.bench.cpu.place import place
from spaninfer.bench.cpu.same_file import Asked, measure_files
from spaninfer.bench.cpu.workloads import WORKLOADS
from spaninfer.bench.engine import Note
from spaninfer.bench.records import title

NAMES: Final = (*KERNELS, *(workload.name for workload in WORKLOADS))

MODEL: Final = "qwen2.5-0.5b"  # of bench.shapes


@dataclass(frozen=True, slots=True)
class Subject:
    """The engine that is timed: its model's folder, and the `peers` beside it (`measure_engine`).

    With types of GGUF `files`, it reads such (`measure_files`) instead, timed by operator, too, if
    `operators` says so.
    """

    folder: Path
    peers: Collection[str] = ()
    files: Collection[str] = ()
    operators: bool = False


def measure_cpu(
    subject: Subject, names: Set[str], runs: int, note: Note, *, beside: int = 0
) -> Iterator[dict[str, Any]]:
    """Yield the limits, and the records of the kernels and workloads of these names.

    `beside` is how many busy processes the caller lets run (`place.busy`), which records say.
    """
    folder, peers, files = subject.folder, subject.peers, subject.files
    here = place(beside)
    limits = measure_limits(runs)
    for fields in records(limits):
        note(f"{title(fields)}: {fields['median']:,} {fields['unit']}")
        yield fields | here
    if names & set(KERNELS):
        compile_all(tuple(FORMATS))
    for name in KERNELS:
        for case in KERNELS[name]() if name in names else ():
            fields = timed(case, limits, runs)
            note(f"{title(fields)}: {fields['median']} us, {fields['of_ceiling']:.0%} of ceiling")
            yield fields | here
    workloads = names - set(KERNELS)
    if files:
        asked = Asked(workloads, runs, limits, peers, subject.operators)
        engine = measure_files(folder, files, asked, note)
    else:
        engine = measure_engine(folder, FORMATS, workloads, runs, note, peers)
    for fields in engine:
        yield fields | here
