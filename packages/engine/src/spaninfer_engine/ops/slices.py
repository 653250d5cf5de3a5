"""Where the rows of a step belong, as kernels read it: indices on the device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from spaninfer_engine.ops.step import Run, Step, runs

_READS_ONLY = 64  # rows whose products take as long as reading the weights, which has to be done
_SPARED = 2  # times as many rows as wanted ones, at the least


@dataclass(frozen=True, slots=True)
class Slices:
    """The R slices of a step's T rows: decodes of one row each, then longer ones. All int32.

    Each of the W wanted rows belongs to a row of the span tables and sees so many positions.

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
    wanted_rows: Tensor  # [W] row of the span tables
    wanted_lengths: Tensor  # [W]

    def of_wanted(self, wanted: Tensor) -> Slices | None:
        """Return the rows wanted[W] as decodes; None where they are many, none, or more than there
        are slices: some are of one prompt then, and share the reading of its keys.
        """
        count, rows = len(wanted), len(self.slots[0])
        if rows < max(_SPARED * count, _READS_ONLY + 1) or not 0 < count <= len(self.rows):
            return None
        return replace(
            self,
            rows=self.wanted_rows,
            lengths=self.wanted_lengths,
            slots=tuple(slots[wanted] for slots in self.slots),
            num_decodes=count,
            prefills=(),
        )


def slices_of(step: Step[Tensor], span_len: int, device: torch.device) -> Slices:
    """Return the slices of a step whose indices are on the host, copied to the device."""
    every = tuple(runs(step))
    num_decodes = next((i for i, run in enumerate(every) if run.last - run.first > 1), len(every))

    def on_device(array: object) -> Tensor:
        return torch.from_numpy(np.array(array, np.int32)).to(device)

    slots = tuple((span * span_len + place).int() for span, place in step.written)
    wanted = step.wanted.cpu().numpy()
    return Slices(
        rows=on_device([run.request for run in every]),
        lengths=on_device([run.stop for run in every]),
        bounds=on_device(step.bounds),
        slots=slots,
        tables=tuple(on_device(table) for table in step.tables),
        num_decodes=num_decodes,
        prefills=every[num_decodes:],
        wanted_rows=on_device(step.request[wanted]),
        wanted_lengths=on_device(step.position[wanted] + 1),
    )
