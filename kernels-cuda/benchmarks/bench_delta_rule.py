"""Times of linear attention's kernels in the shape of Qwen3-Next-80B: one JSON record per line.

Needs torch and a GPU: python kernels-cuda/benchmarks/bench_delta_rule.py
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from spaninfer_kernel_launch import get_gpu, record, time_launches
from spaninfer_kernels_cuda import delta_rule

KEY_HEADS, VALUE_HEADS, SIZE, TAPS, SPAN_LEN = 16, 32, 128, 4, 32
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * SIZE
IN_L2_BYTES = 2**27  # states in turn: twice what the L2 cache of an H200 holds
DECODES = (1, 8, 64, 256)
PROMPTS = tuple((n, length) for n in (1, 8) for length in (512, 4096, 16384))  # tokens of each


class Arrays(NamedTuple):
    """What the kernels of a step take; a span holds the states of several layers."""

    x: torch.Tensor
    weight: torch.Tensor
    gates: tuple[torch.Tensor, torch.Tensor]
    decays: tuple[torch.Tensor, torch.Tensor]
    inputs: torch.Tensor
    states: torch.Tensor
    slices: delta_rule.Slices
    mixed: torch.Tensor
    out: torch.Tensor

    @property
    def num_layers(self) -> int:
        """How many layers' states lie in a span."""
        return self.states.shape[1]

    def convolve(self, stream: int, number: int) -> None:
        """Launch the convolution over one layer's inputs."""
        inputs = self.inputs[:, number % self.num_layers]
        delta_rule.convolve(self.x, self.weight, inputs, self.slices, out=self.mixed, stream=stream)

    def learn(self, stream: int, number: int) -> None:
        """Launch the rule over one layer's states."""
        states = self.states[:, number % self.num_layers]
        delta_rule.delta_rule(
            self.x, self.gates, self.decays, states, self.slices, out=self.out, stream=stream
        )

    def norm(self, stream: int, _number: int) -> None:
        """Launch the gated norm."""
        z = self.out
        delta_rule.gated_rms_norm(self.out, z, self.x[0, :SIZE], eps=1e-6, out=z, stream=stream)


def arrays(requests: int, length: int) -> Arrays:
    """Return those of `requests` slices, of `length` tokens each behind 64 others."""
    rows, gpu = requests * length, {"device": "cuda"}
    floats = {**gpu, "dtype": torch.bfloat16}
    layers = max(1, min(8, IN_L2_BYTES // (requests * VALUE_HEADS * SIZE * SIZE * 4) + 1))
    starts = 64
    tables = torch.arange(requests, **gpu, dtype=torch.int32)[:, None]
    columns = -(-(starts + length) // SPAN_LEN)
    slices = delta_rule.Slices(
        torch.arange(requests, **gpu, dtype=torch.int32),
        torch.full((requests,), starts + length, **gpu, dtype=torch.int32),
        length * torch.arange(requests + 1, **gpu, dtype=torch.int32),
        tables.expand(requests, columns).contiguous(),
        SPAN_LEN,
        requests if length == 1 else 0,
    )
    draws = torch.Generator("cuda").manual_seed(0)
    return Arrays(
        torch.randn(rows, CHANNELS, **floats, generator=draws),
        torch.randn(CHANNELS, TAPS, **floats, generator=draws),
        tuple(torch.randn(rows, VALUE_HEADS, **floats, generator=draws) for _ in range(2)),
        tuple(torch.randn(VALUE_HEADS, **gpu, generator=draws) for _ in range(2)),
        torch.randn(requests, layers, TAPS - 1, CHANNELS, **gpu, generator=draws),
        torch.randn(requests, layers, VALUE_HEADS, SIZE, SIZE, **gpu, generator=draws),
        slices,
        torch.empty(rows, CHANNELS, **floats),
        torch.empty(rows, VALUE_HEADS, SIZE, **floats),
    )


KERNELS = ("convolve", "learn", "norm")


def bytes_moved(given: Arrays, kernel: str) -> int:
    """Return the least that a kernel reads and writes."""
    rows, requests = len(given.x), len(given.slices.table_rows)
    values = 2 * rows * VALUE_HEADS * SIZE
    match kernel:
        case "convolve":
            return 2 * 2 * rows * CHANNELS + 2 * 4 * requests * (TAPS - 1) * CHANNELS
        case "learn":
            states = 2 * 4 * requests * VALUE_HEADS * SIZE * SIZE
            return 2 * rows * CHANNELS + values + states
    return 3 * values


def main() -> None:
    """Time every kernel, for decodes and for prompts."""
    gpu, stream = get_gpu(), torch.cuda.Stream()
    for requests, length in (*((n, 1) for n in DECODES), *PROMPTS):
        given = arrays(requests, length)
        for kernel in KERNELS:
            launch = getattr(given, kernel)
            launch(stream.cuda_stream, 0)  # compiled before it is captured
            torch.cuda.synchronize()
            timing = time_launches(launch, gpu, launches=max(4, 2 * given.num_layers), replays=9)
            sizes = {"kernel": f"delta_rule {kernel}", "requests": requests, "tokens": length}
            moved = bytes_moved(given, kernel)
            print(record(gpu, timing, bytes_moved=moved, **sizes), flush=True)


if __name__ == "__main__":
    main()
