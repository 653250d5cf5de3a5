"""The largest step that can come, to be computed once at the start: what it takes is measured."""

from __future__ import annotations

import numpy as np

from spaninfer_engine.ops.cuda_draw import LOGITS_AT_ONCE
from spaninfer_engine.ops.cuda_memory import Sizes
from spaninfer_engine.ops.device import Columns, Launch
from spaninfer_engine.ops.step import Run
from spaninfer_engine.plan import MOST_LOGITS


def largest_step(sizes: Sizes, columns: Columns, num_rotations: int) -> Launch:
    """Fill the columns of a step with every row and every slice that `sizes` allow; return it.

    As few slices as can be are prompts, which share all rows that are not decodes; of the last one
    as many logits are wanted as a step may want of prompts, all of which penalties may revise, and
    the host gets as many as are sent at a time. Decodes pad; the prompts are those of row 0,
    whatever it holds.
    """
    slices = min(sizes.requests, sizes.rows)
    prompts = min(slices, -(-sizes.rows // sizes.max_len))
    decodes = slices - prompts
    length = min(sizes.max_len, (sizes.rows - decodes) // prompts)
    columns.rows[:decodes] = columns.draws[:slices] = -1
    columns.rows[decodes:slices] = columns.starts[:slices] = columns.stops[:decodes] = 0
    columns.stops[decodes:slices] = length
    columns.bounds[: slices + 1] = columns.wanted[: slices + 1] = np.arange(slices + 1)
    columns.bounds[decodes : slices + 1] = decodes + length * np.arange(prompts + 1)
    columns.wanted[slices] += min(length, MOST_LOGITS) - 1
    firsts = columns.bounds[decodes:slices].tolist()
    return Launch(
        slices=slices,
        rows=int(columns.bounds[slices]),
        wanted=int(columns.wanted[slices]),
        max_len=length,
        num_decodes=decodes,
        prefills=tuple(Run(first, first + length, 0, 0, length) for first in firsts),
        rotations=(None,) * num_rotations,
        logits=tuple(range(min(LOGITS_AT_ONCE, int(columns.wanted[slices])))),
        revises=True,
    )
