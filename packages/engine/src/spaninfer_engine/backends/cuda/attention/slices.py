"""The slices of a step as attention kernels read them: indices on the device."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from spaninfer_engine.step.batch import Run

_READS_ONLY = 64  # rows whose GEMMs take as long as reading the weights, which has to be done
_SPARED = 2  # times as many rows as wanted ones, at the least


@dataclass(frozen=True, slots=True)
class AttentionSlices:
    """The R slices of a step's T rows: decodes of one row each, then longer ones. All int32.

    Each of the W rows with logits belongs to a row of the span tables and sees that many positions.

    `prefills` are the slices behind the decodes as the host knows them, which plain attention goes
    through one by one; a captured step has none. A padding row has length 0 and negative slots.
    """

    rows: Tensor  # [R] row of the span tables
    lengths: Tensor  # [R] positions that the last row of the slice sees, its own included
    bounds: Tensor  # [R + 1] where the rows of each slice begin
    slots: tuple[Tensor, ...]  # per cache group [T]: span * span_len + place in it; < 0: not kept
    tables: tuple[Tensor, ...]  # per cache group [N M]: the spans of each request in order
    num_decodes: int
    prefills: tuple[Run, ...]
    logit_rows: Tensor  # [W] row of the span tables
    logit_seq_lens: Tensor  # [W]
    span_len: int
    until: Tensor | None = None  # [T] position behind the last that a row sees; None: its own

    def slots_of(self, rows: int) -> Tensor | None:
        """Return int32[rows], negative for padding: of all tokens, or of those with logits.

        None where there is no cache group.
        """
        if not self.slots:
            return None
        return self.slots[0] if len(self.slots[0]) == rows else self.logit_rows[:rows]

    def of_logits(self, logit_indices: Tensor) -> AttentionSlices | None:
        """Return the rows wanted[W] as decodes; None where they are many, none, or more than there
        are slices: some are of one prompt then, and share the reading of its keys.
        """
        count, rows = len(logit_indices), len(self.slots[0])
        if rows < max(_SPARED * count, _READS_ONLY + 1) or not 0 < count <= len(self.rows):
            return None
        return replace(
            self,
            rows=self.logit_rows,
            lengths=self.logit_seq_lens,
            slots=tuple(slots[logit_indices] for slots in self.slots),
            num_decodes=count,
            prefills=(),
            until=None,
        )
