"""Measures kernels: first the ceilings, then every case, one record each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

import torch
from spaninfer_kernel_launch import get_gpu

from spaninfer.bench.engine import Note
from spaninfer.bench.kernels.attention import append_cases, decode_cases, prefill_cases
from spaninfer.bench.kernels.case import Case, timed
from spaninfer.bench.kernels.ceiling import measure_ceilings, records
from spaninfer.bench.kernels.experts import expert_cases
from spaninfer.bench.kernels.rows import activation_cases, gemm_cases, norm_cases
from spaninfer.bench.kernels.selection import sample_cases, topk_cases
from spaninfer.bench.records import circumstances, title

KERNELS: Final[Mapping[str, Callable[[], Iterator[Case]]]] = {
    "decode": decode_cases,
    "prefill": prefill_cases,
    "append": append_cases,
    "topk": topk_cases,
    "sample": sample_cases,
    "norm": norm_cases,
    "activation": activation_cases,
    "gemm": gemm_cases,
    "grouped_gemm": expert_cases,
}


def measure_kernels(names: Collection[str], note: Note) -> Iterator[dict[str, Any]]:
    """Yield the ceilings and a record per case of the kernels of these names."""
    gpu, place = get_gpu(), circumstances("cuda")
    ceilings = measure_ceilings(gpu)
    for fields in records(ceilings):
        note(f"{title(fields)}: {fields['median']:,} {fields['unit']}")
        yield fields | place
    for name in KERNELS:
        for case in KERNELS[name]() if name in names else ():
            fields = timed(case, gpu, ceilings)
            note(f"{title(fields)}: {fields['median']} us, {fields['of_ceiling']:.0%} of ceiling")
            yield fields | place
            torch.cuda.empty_cache()
