"""The programs that are timed in turns: our engine at its settings, and peers beside it.

Peers are llama.cpp (through llama-cpp-python) and torch's own operators, one by one, as an engine
of this project runs them; both where they are installed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from spaninfer_engine import ConfigError, Engine, EngineConfig
from spaninfer_host_limits import usable_cpus
from spaninfer_kernels_cpu import Format

from spaninfer.bench.cpu.divergence import divergence_of, divergence_of_llama
from spaninfer.bench.cpu.formats import TORCH, PeerFormat, Setting, settings_of
from spaninfer.bench.cpu.gguf_file import write_gguf
from spaninfer.bench.cpu.llama import Llama, instructions_of, llama_library
from spaninfer.bench.cpu.turns import Program
from spaninfer.bench.cpu.workloads import CONTEXT, MAX_REQUESTS
from spaninfer.bench.engine import Note, seconds_of

LLAMA: Final = "llama.cpp"

PEERS: Final = {
    LLAMA: ("llama_cpp", "pip install llama-cpp-python"),
    "torch": ("torch", "pip install torch"),
}
"""Modules of peers, and how to have them."""

MEMORY: Final = 256 << 20  # of keys and values: thousands of tokens


@dataclass(frozen=True, slots=True)
class Side:
    """A program at a format: seconds of a batch, and the divergence that it costs the bundled model
    in steps of that many rows. `instructions` is what a peer says of the CPU's that it uses.
    """

    program: str
    format: str
    seconds: Program
    divergence: Callable[[int], float]
    instructions: str | None = None

    @property
    def name(self) -> str:
        """The unique name of this side of a comparison."""
        return f"{self.program}, {self.format}"


def installed(asked: Collection[str] | None, note: Note) -> tuple[str, ...]:
    """Return the peers to time: those requested, by default those installed.

    Raises ConfigError if a requested one is not installed.
    """
    found = []
    for peer, (module, remedy) in PEERS.items():
        if asked is not None and peer not in asked:
            continue
        if find_spec(module) is not None:
            found.append(peer)
        elif asked is not None:
            raise ConfigError(f"{peer} is not installed: {remedy}")
        else:
            note(f"{peer} is not installed and is left out of the comparison: {remedy}")
    return tuple(found)


def our_sides(format: Format, folder: Path, stack: ExitStack) -> tuple[Side, ...]:
    """Return our engine at all settings of a format; the stack closes it."""
    return tuple(_engine(setting, folder, stack) for setting in settings_of(format))


def peer_sides(
    peers: Collection[str], format: Format, peer_format: PeerFormat, folder: Path, stack: ExitStack
) -> tuple[Side, ...]:
    """Return what is set beside a format; the stack closes it. torch has bfloat16 alone."""
    sides = []
    if LLAMA in peers:
        sides.append(_llama(peer_format, folder, stack))
    if "torch" in peers and format.kind == TORCH.dtype:
        import torch

        torch.set_num_threads(usable_cpus())
        limit = os.environ.get("ONEDNN_MAX_CPU_ISA")  # of the library that multiplies for torch
        best = torch.backends.cpu.get_cpu_capability()
        instructions = best if limit is None else f"{best}, oneDNN up to {limit}"
        sides.append(_engine(TORCH, folder, stack, instructions))
    return tuple(sides)


def _engine(
    setting: Setting, folder: Path, stack: ExitStack, instructions: str | None = None
) -> Side:
    asked = EngineConfig(
        model=folder,
        weights="dummy",
        device="cpu",
        max_len=CONTEXT,
        memory=MEMORY,
        **setting.asked,
    )
    engine = stack.enter_context(Engine(asked))
    return Side(
        setting.program,
        setting.format,
        partial(seconds_of, engine),
        partial(divergence_of, setting),
        instructions,
    )


def _llama(format: PeerFormat, folder: Path, stack: ExitStack) -> Side:
    """Return the model of the folder's sizes in llama.cpp, from a file that goes with the stack."""
    library, threads = llama_library(), usable_cpus()
    path = Path(stack.enter_context(TemporaryDirectory()), "model.gguf")
    write_gguf(path, json.loads((folder / "config.json").read_text(encoding="utf-8")), format)
    llama = stack.enter_context(
        Llama(library, path, threads=threads, requests=MAX_REQUESTS, context=CONTEXT)
    )
    return Side(
        LLAMA,
        format,
        llama.seconds,
        partial(divergence_of_llama, library, format, threads=threads),
        instructions_of(library),
    )
