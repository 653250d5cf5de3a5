"""Workloads of the CPU benchmark: engine and llama.cpp run the same batches in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from spaninfer.bench.workloads import Batch, Prompts, Workload

DECODED = 64
PREFILLED = 256
MAX_REQUESTS = 8
CONTEXT = 512  # tokens of a request: every workload fits


def _decode(requests: int) -> Workload:
    """Tokens per second of answers that begin with one token: as many steps as tokens."""

    def batches(prompts: Prompts) -> tuple[Batch, ...]:
        return (Batch.of([prompts.fresh(1) for _ in range(requests)], DECODED),)

    return Workload(
        f"decode{DECODED}_bs{requests}",
        "tok/s",
        batches,
        lambda batches, seconds: [sum(batches[0].output_lens) / seconds[0]],
    )


def _prefill() -> Workload:
    """Tokens per second of a prompt, up to the first token of its answer."""

    def batches(prompts: Prompts) -> tuple[Batch, ...]:
        return (Batch.of([prompts.fresh(PREFILLED)], 1),)

    def values(batches: Sequence[Batch], seconds: Sequence[float]) -> list[float]:
        return [len(batches[0].prompts[0]) / seconds[0]]

    return Workload(f"prefill{PREFILLED}", "tok/s", batches, values)


WORKLOADS: Final = (_decode(1), _decode(MAX_REQUESTS), _prefill())

ROWS: Final[Mapping[str, int]] = {
    f"decode{DECODED}_bs1": 1,
    f"decode{DECODED}_bs{MAX_REQUESTS}": MAX_REQUESTS,
    f"prefill{PREFILLED}": PREFILLED,
}
"""Rows of a workload's steps: kernels for one row and for several may round differently."""
