"""Times of small-M GEMM beside cuBLAS's in the same run: one JSON record per line.

First every GEMM of a model by itself, then all GEMMs of a decode step in order, each with the
result of the one before: ours, cuBLAS's, and the faster of both for each GEMM. All run
inside CUDA graphs, weights in turn, so that the L2 cache does not hold them. `of_ceiling` is the
rate at which weights are read over that of a plain sum. Ours include bias, gate and residual; in
cuBLAS's step a kernel of ours follows for the gate, and what is added is left out.

Needs torch and a GPU: python kernels-cuda/benchmarks/bench_gemm.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import ml_dtypes
import torch
from spaninfer_kernel_launch import Timing, get_gpu, record
from spaninfer_kernels_cuda import activation, gemm
from spaninfer_kernels_cuda.activation import Act
from spaninfer_kernels_cuda.gemm import Shape
from torch.nn.functional import linear

ROWS = (1, 8, 16, 32, 48, 64, 96, 128, 192, 256, 416, 512)
REPLAYS = 15
COLD_BYTES = 400 << 20  # of weights in turn: many times the L2 cache
Work = Callable[[], object]


@dataclass(frozen=True)
class Model:
    """Sizes of a decoder-only model of the Llama family: hidden and inner sizes, heads."""

    name: str
    layers: int
    hidden: int
    qkv: int
    inner: int
    vocab: int

    @property
    def gemms(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of a layer's GEMMs, and of the head's."""
        return {
            "qkv": (self.qkv, self.hidden),
            "attention_output": (self.hidden, self.hidden),
            "gate_up": (2 * self.inner, self.hidden),
            "down": (self.hidden, self.inner),
            "head": (self.vocab, self.hidden),
        }


MODELS = (
    Model("Qwen2.5-7B", layers=28, hidden=3584, qkv=4608, inner=18_944, vocab=152_064),
    Model("Qwen2.5-0.5B", layers=24, hidden=896, qkv=1152, inner=4864, vocab=151_936),
)


@dataclass(frozen=True)
class PreparedLayer:
    """One GEMM, prepared for a number of rows: as our kernel, or as torch does it."""

    name: str
    shape: Shape
    step: gemm.PreparedGemm | None

    @property
    def is_gated(self) -> bool:
        """Whether half of the outputs are gates."""
        return self.name == "gate_up"

    def run(self, x: torch.Tensor, weight: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        """Return the result; ours with what follows it in a layer."""
        columns = self.shape.outputs // 2 if self.is_gated else self.shape.outputs
        out = torch.empty(len(x), columns, dtype=x.dtype, device="cuda")
        if self.step is None:
            result = linear(x, weight)
            if self.is_gated:
                activation.gated(result, "silu", out=out)
            return out if self.is_gated else result
        adds = self.name in ("attention_output", "down")
        self.step.launch(
            *(x, weight),
            out=out,
            workspace=scratch.workspace,
            bias=scratch.bias if self.name == "qkv" else 0,
            residual=scratch.residual if adds else 0,
        )
        return out


@dataclass(frozen=True)
class Scratch:
    """Workspace and results of our launches."""

    workspace: torch.Tensor
    bias: torch.Tensor
    residual: torch.Tensor


def prepare(
    model: Model, rows: int, ours: frozenset[str]
) -> tuple[dict[str, PreparedLayer], Scratch]:
    """Return the GEMMs of `model`, those named in `ours` with our kernel, and their scratch."""
    gemms = {}
    for name, (outputs, inner) in model.gemms.items():
        shape = Shape(rows, outputs, inner)
        gate: Act | None = "silu" if name == "gate_up" else None
        # An attention output's input is a part of the rows that qkv has written.
        stride = model.qkv if name == "attention_output" else inner
        step = gemm.prepare(
            shape, dtype=ml_dtypes.bfloat16, gpu=get_gpu(), gate=gate, row_stride=stride
        )
        gemms[name] = PreparedLayer(name, shape, step if name in ours else None)
    most = max(p.step.workspace_bytes if p.step else 0 for p in gemms.values())
    return gemms, Scratch(
        workspace=torch.zeros(most, dtype=torch.uint8, device="cuda"),
        bias=random(model.qkv),
        residual=random(rows, model.hidden),
    )


def random(*shape: int, spread: float = 1.0) -> torch.Tensor:
    """Return normal bfloat16 numbers on the GPU."""
    return torch.empty(*shape, dtype=torch.bfloat16, device="cuda").normal_(std=spread)


def weights(outputs: int, inner: int, count: int) -> list[torch.Tensor]:
    """Return `count` weights that keep the size of what they multiply."""
    return [random(outputs, inner, spread=inner**-0.5) for _ in range(count)]


def time_graph(works: Sequence[Work]) -> Timing:
    """Return what one of `works` takes when all run in order inside a CUDA graph."""
    for work in works[:4]:
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [work() for work in works]  # results live until the end: nothing is overwritten
    times = time_works(graph.replay)
    del kept
    return Timing(*(us / len(works) for us in (median(times), min(times), max(times))))


def time_works(work: Work) -> list[float]:
    """Return the microseconds of each of some runs, after two that warm up."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPLAYS + 2)]
    for before, after in events:
        before.record()
        work()
        after.record()
    torch.cuda.synchronize()
    return [1e3 * before.elapsed_time(after) for before, after in events[2:]]


def measure_ceiling() -> float:
    """Print how fast a sum reads memory; return bytes per microsecond."""
    x = torch.randn(1 << 29, device="cuda")
    times = time_works(x.sum)
    timing = Timing(median(times), min(times), max(times))
    print(record(get_gpu(), timing, bytes_moved=x.nbytes, kernel="sum"), flush=True)
    return x.nbytes / timing.us


def emit(timing: Timing, num_bytes: int, ceiling: float, **sizes: str | int | list[str]) -> None:
    """Print the record of GEMMs that read `num_bytes` of weights."""
    share = round(num_bytes / timing.us / ceiling, 3)
    line = record(get_gpu(), timing, bytes_moved=num_bytes, of_ceiling=share, **sizes)
    print(line, flush=True)


def measure_gemms(model: Model, rows: int, ceiling: float) -> frozenset[str]:
    """Print a record per GEMM and kernel; return the GEMMs that ours computes faster."""
    ours, scratch = prepare(model, rows, frozenset(model.gemms))
    theirs, _ = prepare(model, rows, frozenset())
    faster = set()
    for name, (outputs, inner) in model.gemms.items():
        num_bytes = 2 * outputs * inner
        held = weights(outputs, inner, max(2, min(128, COLD_BYTES // num_bytes)))
        x = random(rows, model.qkv if name == "attention_output" else inner)[:, :inner]
        us = {}
        for kernel, gemms in (("gemm", ours), ("cublas", theirs)):
            run = gemms[name].run
            timing = time_graph([partial(run, x, weight, scratch) for weight in held])
            us[kernel] = timing.us
            sizes = {"rows": rows, "outputs": outputs, "inner": inner}
            emit(timing, num_bytes, ceiling, kernel=kernel, model=model.name, product=name, **sizes)
        if us["gemm"] < us["cublas"]:
            faster.add(name)
    return frozenset(faster)


def measure_step(model: Model, rows: int, faster: frozenset[str], ceiling: float) -> None:
    """Print the time of all GEMMs of a step: ours, cuBLAS's, the faster of both for each."""
    *in_layer, head = model.gemms
    work = [
        (name, weights(*model.gemms[name], count=1)[0]) for name in [*in_layer * model.layers, head]
    ]
    num_bytes = sum(weight.nbytes for _, weight in work)
    first = random(rows, model.hidden)
    kinds = {"gemm": frozenset(model.gemms), "cublas": frozenset[str](), "best": faster}
    for kernel, ours in kinds.items():
        gemms, scratch = prepare(model, rows, ours)

        def step(gemms: dict[str, PreparedLayer] = gemms, scratch: Scratch = scratch) -> object:
            x = first
            for name, weight in work:
                x = gemms[name].run(x[:, : weight.shape[1]], weight, scratch)
            return x

        sizes = {"kernel": kernel, "model": model.name, "product": "step"}
        emit(time_graph([step]), num_bytes, ceiling, rows=rows, ours=sorted(ours), **sizes)


def main() -> None:
    """Measure every GEMM, then whole steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    asked = parser.parse_args()
    ceiling = measure_ceiling()
    for model in MODELS:
        for rows in asked.rows:
            faster = measure_gemms(model, rows, ceiling)
            measure_step(model, rows, faster, ceiling)


if __name__ == "__main__":
    main()
