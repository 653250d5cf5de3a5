"""Our engine and llama.cpp on the same GGUF file, of random weights, in turns."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, get_args

from spaninfer_engine import Engine, EngineConfig
from spaninfer_host_limits import usable_cpus
from spaninfer_kernels_cpu import Format, Kind

from spaninfer.bench.cpu.formats import OURS, PeerFormat, Setting, settings_of
from spaninfer.bench.cpu.gguf_file import matrices, write_gguf
from spaninfer.bench.cpu.limits import Limits, Work
from spaninfer.bench.cpu.llama import Llama, instructions_of, llama_library
from spaninfer.bench.cpu.operators import operator_records
from spaninfer.bench.cpu.sides import LLAMA, MEMORY
from spaninfer.bench.cpu.turns import Cores, Program, Turns, in_turns
from spaninfer.bench.cpu.workloads import CONTEXT, DECODED, MAX_REQUESTS, ROWS, WORKLOADS
from spaninfer.bench.engine import Note, seconds_of
from spaninfer.bench.records import summary
from spaninfer.bench.workloads import Workload

TYPES: Final[tuple[PeerFormat, ...]] = get_args(PeerFormat)

MODEL: Final = "qwen3-0.6b"  # of bench.shapes; all of its rows are whole blocks of 256 channels


@dataclass(frozen=True, slots=True)
class Asked:
    """Names of workloads, rounds of each, what rates are set beside, and peers that are timed;
    `operators`: whether our engine's steps are timed by operator, too.
    """

    names: Collection[str]
    runs: int
    limits: Limits
    peers: Collection[str]
    operators: bool = False


def measure_files(
    folder: Path, types: Collection[str], asked: Asked, note: Note
) -> Iterator[dict[str, Any]]:
    """Yield the fields of a record per type, workload and program, and of the ratios.

    `folder` holds the config.json of a Qwen model. All matrices of a file have one type.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with TemporaryDirectory() as home:
        for type in (each for each in TYPES if each in types):
            note(f"{type}: writing a file, and compiling kernels that are not cached")
            path = Path(home, f"{type}.gguf")
            write_gguf(path, config, type)
            for fields in _File(path, type, config).measure(asked):
                note("{workload} {format}, {about}: {median:,} {unit}".format(**_said(fields)))
                yield {"benchmark": "gguf", "model": folder.name, "weights": "dummy"} | fields
            path.unlink()


def _said(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with what a record is about, a program or an operator."""
    return {"about": fields.get("operator", fields.get("program")), **fields}


def _name_of(setting: Setting) -> str:
    """Return our engine's name with a setting, as turns have it."""
    return f"{OURS}, {setting.format}"


@dataclass(frozen=True, slots=True)
class _File:
    """A file of one type, and the config.json of its model."""

    path: Path
    type: PeerFormat
    config: Mapping[str, Any]

    def measure(self, asked: Asked) -> Iterator[dict[str, Any]]:
        """Yield the fields of all requested workloads."""
        vocab = self.config["vocab_size"]
        with ExitStack() as stack:
            ours = {each: self._engine(each, stack) for each in self._settings()}
            programs: dict[str, Program] = {
                _name_of(setting): program for setting, program in ours.items()
            }
            instructions = {}
            if LLAMA in asked.peers:
                library = llama_library()
                instructions = {"peer_instructions": instructions_of(library)}
                programs[LLAMA] = stack.enter_context(self._llama(library)).seconds
            cores = Cores(self._kind)
            for workload in (each for each in WORKLOADS if each.name in asked.names):
                turns = in_turns(workload, programs, vocab, asked.runs, cores)
                about = {"workload": workload.name, "left_out": turns.left_out}
                for fields in self._rates(workload, turns, asked.limits):
                    yield about | fields | (instructions if fields["program"] == LLAMA else {})
                for fields in self._ratios(turns):
                    yield about | fields | instructions
                for setting, program in ours.items() if asked.operators else ():
                    for fields in operator_records(program, workload, vocab):
                        yield {"format": setting.format, **fields}

    def _rates(self, workload: Workload, turns: Turns, limits: Limits) -> Iterator[dict[str, Any]]:
        """Yield how fast each program was, and by how much below the machine's limits."""
        work = self._work(workload.name)
        formats = {_name_of(each): each.format for each in self._settings()}
        for name, rates in turns.values.items():
            fields = summary(workload.unit, rates)
            yield {
                "program": OURS if name in formats else LLAMA,
                "format": formats.get(name, self.type),
                **fields,
                **work.rates(1 / fields["median"], limits),
            }

    def _ratios(self, turns: Turns) -> Iterator[dict[str, Any]]:
        """Yield how many times as fast as llama.cpp our engine was, where it took part."""
        for setting in self._settings() if LLAMA in turns.values else ():
            pairs = zip(turns.values[_name_of(setting)], turns.values[LLAMA], strict=True)
            yield {
                "program": f"{OURS} / {LLAMA}",
                "format": f"{setting.format} / {self.type}",
                **summary("times", [rate / peer for rate, peer in pairs]),
            }

    @property
    def _kind(self) -> Kind:
        """Which multiply-adds in registers bound it: bytes, whatever codes are expanded to."""
        return "bfloat16" if self.type == "BF16" else "int8"

    def _settings(self) -> tuple[Setting, ...]:
        """Return how our engine reads the file; of bfloat16 as `settings_of` says."""
        if self.type == "BF16":
            return settings_of(Format("bfloat16"))
        return (Setting(OURS, self.type),)

    def _engine(self, setting: Setting, stack: ExitStack) -> Program:
        asked = EngineConfig(
            model=self.path, device="cpu", max_len=CONTEXT, memory=MEMORY, **setting.asked
        )
        return partial(seconds_of, stack.enter_context(Engine(asked)))

    def _llama(self, library: Any) -> Llama:
        threads = usable_cpus()
        return Llama(library, self.path, threads=threads, requests=MAX_REQUESTS, context=CONTEXT)

    def _work(self, workload: str) -> Work:
        """Return what a token takes: its share of the bytes of a step, and all its GEMMs.

        The head's GEMM is of a request's last token alone, as those of a prompt show.
        """
        parameters = sum(outputs * channels for _, (outputs, channels) in matrices(self.config))
        head = self.config["vocab_size"] * self.config["hidden_size"]
        rows = ROWS[workload]
        heads = rows if workload.startswith(f"decode{DECODED}") else 1
        operations = 2 * (rows * (parameters - head) + heads * head)
        return Work(self._kind, self.path.stat().st_size // rows, operations // rows)
