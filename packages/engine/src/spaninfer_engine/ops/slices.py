"""Where the rows of a step belong, as kernels read it: indices on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spaninfer_engine.ops.step import Run, Step, runs


@dataclass(frozen=True, slots=True)
class Slices:
    """The R slices of a step's T rows: decodes of one row each, then longer ones. All int32.

    `prefills` are the slices behind the decodes as the host knows them; a step that is captured
    into a graph has none. A padding row has length 0 and negative slots.
    """

    rows: Tensor  # [R] row of the span tables
    lengths: Tensor  # [R] positions that the last row of the slice sees, its own included
    bounds: Tensor  # [R + 1] where the rows of each slice begin
    slots: tuple[Tensor, ...]  # per cache group [T]: span * span_len + place in it; < 0: not kept
    tables: tuple[Tensor, ...]  # per cache group [N M]: the spans of each request in order
    num_decodes: int
    prefills: tuple[Run, ...]


def slices_of(step: Step[Tensor], span_len: int, device: torch.device) -> Slices:
    """Return the slices of a step whose indices are on the host, copied to the device."""
    every = tuple(runs(step))
    num_decodes = next((i for i, run in enumerate(every) if run.last - run.first > 1), len(every))

    def on_device(array: object) -> Tensor:
        return torch.from_numpy(np.array(array, np.int32)).to(device)

    slots = tuple((span * span_len + place).int() for span, place in step.written)
    return Slices(
        rows=on_device([run.request for run in every]),
        lengths=on_device([run.stop for run in every]),
        bounds=on_device(step.bounds),
        slots=slots,
        tables=tuple(on_device(table) for table in step.tables),
        num_decodes=num_decodes,
        prefills=every[num_decodes:],
    )
