"""Steps that a start computes for nobody: the largest that can come, because what it takes is
measured, and those that launch what it may lack.
"""

from __future__ import annotations

import numpy as np
from spaninfer_kernels_cuda import gemm

from spaninfer_engine.ops.cuda_draw import LOGITS_AT_ONCE
from spaninfer_engine.ops.cuda_forms import PROMPTS, Form
from spaninfer_engine.ops.cuda_memory import Sizes
from spaninfer_engine.ops.device import Columns, Launch
from spaninfer_engine.ops.step import Run
from spaninfer_engine.plan import MOST_LOGITS

SMALLER = (Form(1), Form(0, PROMPTS[0], gemm.tuning.MOST_ROWS + 64))
"""A decode alone; and a prompt too long for products of few rows, one row of which is wanted: of
the others, its last layer computes keys and values alone."""


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
