"""The whole engine beside llama.cpp: one format after the other, runs of both in turns."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from types import ModuleType
from typing import Any

from spaninfer_engine import Engine, EngineConfig
from spaninfer_kernels_cpu import Format, usable_cpus

from spaninfer.bench.cpu.divergence import NUM_TEXTS, TOKENS, divergence_of, divergence_of_llama
from spaninfer.bench.cpu.formats import PeerFormat, name_of, options_of
from spaninfer.bench.cpu.gguf_file import write_gguf
from spaninfer.bench.cpu.llama import MISSING, Llama, instructions_of, llama_library
from spaninfer.bench.cpu.workloads import CONTEXT, MOST_REQUESTS, ROWS, WORKLOADS
from spaninfer.bench.engine import Note, seconds_of
from spaninfer.bench.records import summary
from spaninfer.bench.workloads import Batch, Prompts, Workload

OURS, THEIRS = "spaninfer", "llama.cpp"

_MEMORY = 256 << 20  # of keys and values: thousands of tokens
_SETTLE_S = 0.1  # threads of both spin for a while after a step

Program = Callable[[Batch], float]  # seconds of a batch


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
            vocab = engine.tokenizer.vocab_size
            for workload in WORKLOADS:
                if workload.name in names:
                    lost = divergences(format, peer_format, library, ROWS[workload.name])
                    values = in_turns(workload, programs, vocab, runs)
                    for fields in records_of(workload, values, peers, lost):
                        note(_said(fields))
                        yield {"benchmark": "cpu", **about, **fields}


def in_turns(
    workload: Workload, programs: Mapping[str, Program], vocab: int, runs: int
) -> dict[str, list[float]]:
    """Return every program's values, after a run of each that does not count.

    Each run has prompts of its own, the same for all programs; who begins changes from run to run.
    """
    values: dict[str, list[float]] = {program: [] for program in programs}
    for run in range(runs + 1):
        (batch,) = workload.batches(Prompts(vocab, run))
        for program in sorted(programs, reverse=run % 2 == 0):
            sleep(_SETTLE_S)
            seconds = programs[program](batch)
            if run:
                values[program] += workload.values((batch,), (seconds,))
    return values


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
    values: Mapping[str, list[float]],
    formats: Mapping[str, str],
    lost: Mapping[str, float],
) -> Iterator[dict[str, Any]]:
    """Yield what records say of a workload: a rate per program, and our rates over theirs.

    `lost`, the divergences by program, stands beside: `kl`, and `kl_peer` in the record of ratios.
    """
    kl = {program: float(f"{value:.4g}") for program, value in lost.items()}
    on = {"kl_model": "demo", "kl_tokens": TOKENS * NUM_TEXTS}
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
