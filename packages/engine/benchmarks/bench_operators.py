"""Microseconds of each call of an encoder's step, by itself, on one thread; a JSON record a line.

    python bench_operators.py --shape minilm-l6 --quantize w7a7:row --texts 4 --tokens 128

Random weights. Every round runs the whole step call by call, so that each finds the caches as it
does in a step; a time is the least of all rounds, which neighbours lengthen last. Calls of the same
kernel and sizes are summed over layers. GEMMs stand beside what the registers make of such numbers
on one thread (`roofline.peak_gops`).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from bench_encoders import SHAPES, ours, write_weights
from spaninfer_engine.backends.cpu import ops, script
from spaninfer_host_limits import cpu_name
from spaninfer_kernels_cpu import Script, ThreadPool
from spaninfer_kernels_cpu.gemm.gemm_arguments import GemmArguments
from spaninfer_kernels_cpu.gemm.roofline import peak_gops
from spaninfer_kernels_cpu.runtime.call import Call


class Calls(Script):
    """A script that remembers its calls."""

    def __init__(self, calls: Sequence[Call]) -> None:
        super().__init__(calls)
        self.parts = [(call, Script([call])) for call in calls]


class Stopwatch(ThreadPool):
    """A thread that notes how long each call of a script takes."""

    def __init__(self) -> None:
        super().__init__(1)
        self.rounds: dict[Calls, list[list[int]]] = {}

    def run(self, script: Script, counts: Sequence[int], *, wakes: bool = True) -> None:
        """Run a script call by call."""
        assert isinstance(script, Calls)
        taken = []
        for _, part in script.parts:
            begin = time.perf_counter_ns()
            super().run(part, counts, wakes=wakes)
            taken.append(time.perf_counter_ns() - begin)
        self.rounds.setdefault(script, []).append(taken)


def main() -> None:
    """Print a record per kernel and sizes, the longest first, and one of the whole step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="minilm-l6")
    parser.add_argument("--quantize", default="", help="a group behind a colon; default: float32")
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=30)
    asked = parser.parse_args()
    watch = Stopwatch()
    script.Script, ops.shared_thread_pool = Calls, lambda: watch  # type: ignore[attr-defined, misc]
    with tempfile.TemporaryDirectory() as folder:
        write_weights(Path(folder), SHAPES[asked.shape])
        embed = ours(Path(folder), asked.quantize)
        rng = np.random.default_rng(0)
        texts = [rng.integers(3, 30000, asked.tokens).tolist() for _ in range(asked.texts)]
        embed(texts)
        watch.rounds.clear()
        for _ in range(asked.rounds):
            embed(texts)
    kind, _, group = asked.quantize.partition(":")
    channel_bytes = {"": 4, "w13a13": 2}.get(kind, 1)
    peak = peak_gops(kind or "float32", group=None if group == "row" else int(group or 32), cpus=1)
    spent, counts, operations = Counter[str](), Counter[str](), Counter[str]()
    for each, rounds in watch.rounds.items():
        for (call, _), taken in zip(each.parts, np.min(rounds, axis=0), strict=True):
            name = _name(call, channel_bytes)
            spent[name] += int(taken)
            counts[name] += 1
            operations[name] += _operations(call, channel_bytes, asked.texts * asked.tokens)
    whole = sum(spent.values())
    about = {
        "benchmark": "operators", "shape": asked.shape, "quantize": asked.quantize or None,
        "texts": asked.texts, "tokens": asked.tokens, "cpu": cpu_name(),
    }  # fmt: skip
    for name, ns in [*spent.most_common(), ("step", whole)]:
        done = operations[name] if name != "step" else sum(operations.values())
        gops = done / ns
        found = {"calls": counts[name] or counts.total(), "us": round(ns / 1e3, 1)}
        rate = {"gops": round(gops, 1), "of_peak": round(gops / peak, 3)} if done else {}
        print(json.dumps({**about, "call": name, **found, "share": round(ns / whole, 3), **rate}))


def _name(call: Call, channel_bytes: int) -> str:
    """Return the kernel's name, and of a GEMM its sizes."""
    name: str = call.kernel.__qualname__.rpartition(".")[2]
    if not isinstance(call.arguments, GemmArguments):
        return name
    return f"{name} {call.arguments.weight.outputs}x{_channels(call.arguments, channel_bytes)}"


def _operations(call: Call, channel_bytes: int, tokens: int) -> int:
    arguments = call.arguments
    if not isinstance(arguments, GemmArguments):
        return 0
    return 2 * tokens * arguments.weight.outputs * _channels(arguments, channel_bytes)


def _channels(arguments: GemmArguments, channel_bytes: int) -> int:
    """Return the channels of a weight from the bytes of a panel."""
    return arguments.weight.panel_bytes // (64 * channel_bytes) // 32 * 32


if __name__ == "__main__":
    main()
