"""The whole engine beside llama.cpp: one format after the other, runs of both in turns."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from spaninfer_engine import Engine, EngineConfig
from spaninfer_kernels_cpu import Format, usable_cpus

from spaninfer.bench.cpu.divergence import REQUESTS, TOKENS, divergence_of, divergence_of_llama
from spaninfer.bench.cpu.formats import PeerFormat, name_of, options_of
from spaninfer.bench.cpu.gguf_file import write_gguf
from spaninfer.bench.cpu.llama import MISSING, Llama, instructions_of, llama_library
from spaninfer.bench.cpu.turns import Cores, Program, Turns, in_turns
from spaninfer.bench.cpu.workloads import CONTEXT, MOST_REQUESTS, ROWS, WORKLOADS
from spaninfer.bench.engine import Note, seconds_of
from spaninfer.bench.records import summary
from spaninfer.bench.workloads import Workload

OURS, THEIRS = "spaninfer", "llama.cpp"

_MEMORY = 256 << 20  # of keys and values: thousands of tokens


def measure_engine(
    folder: Path,
    formats: Mapping[Format, PeerFormat],
    names: Collection[str],
    runs: int,
    note: Note,
) -> Iterator[dict[str, Any]]:
    """Yield the fields of a record per format, workload and program, and of the ratios.

    `folder` holds the config.json of a Qwen2 model; weights are random. A ratio is that of two
    neighbouring runs, so that it holds where the clock, or a neighbour on the machine, does not.
    Beside a rate stands what its format costs the bundled model, which is trained (`divergence`),
    in steps of as many rows as the workload's.
    """
    if not names:
        return
    library = llama_library()
    about = {"model": folder.name, "weights": "dummy"}
    if library is None:
        note(MISSING)
    else:
        about["peer_instructions"] = instructions_of(library)
    for format, peer_format in formats.items():
        note(f"{name_of(format)}: drawing weights, and compiling what is not in the cache on disk")
        with ExitStack() as stack:
            engine = stack.enter_context(_engine(folder, format))
            programs: dict[str, Program] = {OURS: partial(seconds_of, engine)}
            if library is not None:
                llama = stack.enter_context(_llama(library, folder, peer_format, stack))
                programs[THEIRS] = llama.seconds
            peers = {OURS: name_of(format), THEIRS: peer_format}
            vocab, cores = engine.tokenizer.vocab_size, Cores(format.kind)
            for workload in WORKLOADS:
                if workload.name in names:
                    lost = divergences(format, peer_format, library, ROWS[workload.name])
                    turns = in_turns(workload, programs, vocab, runs, cores)
                    for fields in records_of(workload, turns, peers, lost):
                        note(_said(fields))
                        yield {"benchmark": "cpu", **about, **fields}


def divergences(
    format: Format, peer_format: PeerFormat, library: ModuleType | None, rows: int
) -> dict[str, float]:
    """Return what formats cost the bundled model in steps of so many rows, by program."""
    found = {OURS: divergence_of(format, rows)}
    if library is not None:
        found[THEIRS] = divergence_of_llama(library, peer_format, rows, usable_cpus())
    return found


def records_of(
    workload: Workload,
    turns: Turns,
    formats: Mapping[str, str],
    lost: Mapping[str, float],
) -> Iterator[dict[str, Any]]:
    """Yield what records say of a workload: a rate per program, and our rates over theirs.

    `lost`, the divergences by program, stands beside: `kl`, and `kl_peer` in the record of ratios.
    `left_out` are rounds in which the CPUs were not whole cores (`turns`).
    """
    kl = {program: float(f"{value:.4g}") for program, value in lost.items()}
    on = {"kl_model": "demo", "kl_tokens": TOKENS * len(REQUESTS), "left_out": turns.left_out}
    values = turns.values
    for program, rates in values.items():
        about = {"workload": workload.name, "program": program, "format": formats[program]}
        yield about | summary(workload.unit, rates) | {"kl": kl[program]} | on
    if THEIRS in values:
        ratios = [ours / theirs for ours, theirs in zip(values[OURS], values[THEIRS], strict=True)]
        about = {
            "workload": workload.name,
            "program": f"{OURS} / {THEIRS}",
            "format": f"{formats[OURS]} / {formats[THEIRS]}",
        }
        yield about | summary("times", ratios) | {"kl": kl[OURS], "kl_peer": kl[THEIRS]} | on


def _engine(folder: Path, format: Format) -> Engine:
    asked: dict[str, Any] = options_of(format)
    return Engine(
        EngineConfig(
            model=folder, weights="dummy", backend="cpu", max_len=CONTEXT, memory=_MEMORY, **asked
        )
    )


def _llama(library: ModuleType, folder: Path, format: PeerFormat, stack: ExitStack) -> Llama:
    """Return the model of the folder's sizes in llama.cpp, from a file that goes with the stack."""
    path = Path(stack.enter_context(TemporaryDirectory()), "model.gguf")
    write_gguf(path, json.loads((folder / "config.json").read_text(encoding="utf-8")), format)
    return Llama(library, path, threads=usable_cpus(), requests=MOST_REQUESTS, context=CONTEXT)


def _said(fields: Mapping[str, Any]) -> str:
    return "{workload} {format}, {program}: {median:,} {unit}, divergence {kl:.3g}".format(**fields)
