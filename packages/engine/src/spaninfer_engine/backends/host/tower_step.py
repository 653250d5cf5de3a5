"""The steps of towers in which nothing is cut into windows or rotated."""

from __future__ import annotations

import numpy as np

from spaninfer_engine.ops.step import A, Step, metadata_of_runs
from spaninfer_engine.ops.table import Ops
from spaninfer_engine.step.batch import Ints


def plain_step(
    ops: Ops[A], places: Ints, lens: Ints, *, wanted: int = 0, features: A | None = None
) -> Step[A]:
    """Return the step of rows at places[T], which attend within runs of these lengths; the program
    returns `wanted` of them.
    """
    return Step(
        token_ids=ops.from_host(np.zeros(len(places), np.int32)),
        positions=ops.from_host(places[None]),
        rotations=(),
        logit_indices=ops.from_host(np.arange(wanted, dtype=np.int32)),
        attention=metadata_of_runs(lens),
        features=features,
    )
