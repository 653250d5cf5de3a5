"""The whole engine beside its peers: one format after the other, runs of all in turns."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from spaninfer_kernels_cpu import Format

from spaninfer.bench.cpu.divergence import REQUESTS, TOKENS
from spaninfer.bench.cpu.formats import PeerFormat, name_of
from spaninfer.bench.cpu.sides import Side, our_sides, peer_sides
from spaninfer.bench.cpu.turns import Cores, Turns, in_turns
from spaninfer.bench.cpu.workloads import ROWS, WORKLOADS
from spaninfer.bench.engine import Note
from spaninfer.bench.records import summary
from spaninfer.bench.workloads import Workload


def measure_engine(
    folder: Path,
    formats: Mapping[Format, PeerFormat],
    names: Collection[str],
    runs: int,
    note: Note,
    peers: Collection[str] = (),
) -> Iterator[dict[str, Any]]:
    """Yield the fields of a record per format, workload and program, and of the ratios.

    `folder` holds the config.json of a Qwen2 model; weights are random. `peers` are those of
    `sides.installed`. A ratio is that of two neighbouring runs, so that it holds where the clock,
    or a neighbour on the machine, does not. Beside a rate stands what its format costs the bundled
    model, which is trained (`divergence`), in steps of as many rows as the workload's.
    """
    if not names:
        return
    about = {"model": folder.name, "weights": "dummy"}
    vocab = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    for format, peer_format in formats.items():
        note(f"{name_of(format)}: generating weights, and compiling kernels that are not cached")
        with ExitStack() as stack:
            ours = our_sides(format, folder, stack)
            theirs = peer_sides(peers, format, peer_format, folder, stack)
            programs = {side.name: side.seconds for side in (*ours, *theirs)}
            cores = Cores(format.kind)
            for workload in WORKLOADS:
                if workload.name in names:
                    rows = ROWS[workload.name]
                    lost = {side.name: side.divergence(rows) for side in (*ours, *theirs)}
                    turns = in_turns(workload, programs, vocab, runs, cores)
                    for fields in records_of(workload, turns, ours, theirs, lost):
                        note(_said(fields))
                        yield {"benchmark": "cpu", **about, **fields}


def records_of(
    workload: Workload,
    turns: Turns,
    ours: Sequence[Side],
    theirs: Sequence[Side],
    lost: Mapping[str, float],
) -> Iterator[dict[str, Any]]:
    """Yield what records say of a workload: a rate per side, and ours over each peer's.

    `lost`, the divergences by side, stands beside: `kl`, and `kl_peer` in the record of ratios.
    `left_out` are rounds in which the CPUs were not whole cores (`turns`).
    """
    kl = {name: float(f"{value:.4g}") for name, value in lost.items()}
    on = {"kl_model": "demo", "kl_tokens": TOKENS * len(REQUESTS), "left_out": turns.left_out}
    for side in (*ours, *theirs):
        about = {"workload": workload.name, "program": side.program, "format": side.format}
        rates = turns.values[side.name]
        yield (
            about | _instructions(side) | summary(workload.unit, rates) | {"kl": kl[side.name]} | on
        )
    for our in ours:
        for their in theirs:
            pairs = zip(turns.values[our.name], turns.values[their.name], strict=True)
            about = {
                "workload": workload.name,
                "program": f"{our.program} / {their.program}",
                "format": f"{our.format} / {their.format}",
            }
            errors = {"kl": kl[our.name], "kl_peer": kl[their.name]}
            ratios = summary("times", [rate / peer for rate, peer in pairs])
            yield about | _instructions(their) | ratios | errors | on


def _instructions(side: Side) -> dict[str, str]:
    return {} if side.instructions is None else {"peer_instructions": side.instructions}


def _said(fields: Mapping[str, Any]) -> str:
    return "{workload} {format}, {program}: {median:,} {unit}, divergence {kl:.3g}".format(**fields)
