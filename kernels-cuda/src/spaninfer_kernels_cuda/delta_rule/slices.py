"""The slices of a step, and the spans in which their sequences' states lie."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from spaninfer_kernel_launch import ShapeError, Signature, Source, View, check_dense, match


class Slices(NamedTuple):
    """Tokens of R sequences, and where each finds its state: int32 arrays on the GPU.

    Slice r is tokens [query_start_loc[r], query_start_loc[r + 1]) of a step, the last ones of the
    first seq_lens[r] of its sequence, whose spans stand in row table_rows[r] of tables[N M]; -1
    pads. The first `num_decodes` slices have one token each.

    A slice begins with the state in the span of index (start - 1) // span_len, or with zeros at the
    start of a sequence, and leaves one in the span of the index of its last token. Where an index
    that it fills before names another span, a snapshot of the state at its end is left there.
    """

    table_rows: Any
    seq_lens: Any
    query_start_loc: Any
    tables: Any
    span_len: int
    num_decodes: int = 0

    @property
    def arrays(self) -> tuple[Any, Any, Any, Any]:
        """The arrays."""
        return self.table_rows, self.seq_lens, self.query_start_loc, self.tables


SLICE_AXES = {
    "table_rows": "R",
    "seq_lens": "R",
    "query_start_loc": "B",
    "tables": "N M",
}


def check_slices(views: dict[str, View], num_decodes: int) -> int:
    """Return the number of slices; ShapeError or DTypeError where the arrays are none."""
    sizes = match(**{name: (views[name], axes) for name, axes in SLICE_AXES.items()})
    count: int = sizes["R"]
    if sizes["B"] != count + 1:
        raise ShapeError(f"query_start_loc: {sizes['B']} bounds of {count} slices; one more")
    if not 0 <= num_decodes <= count:
        raise ShapeError(f"num_decodes is {num_decodes}, but there are {count} slices")
    check_dense(np.int32, **{name: views[name] for name in SLICE_AXES if name != "tables"})
    tables = views["tables"]
    if tables.dtype != np.int32 or tables.strides[1] != 1:
        raise ShapeError(f"tables: int32 numbers one after another, got {tables.dtype}")
    return count


def check_states(name: str, states: View, inner: tuple[int, ...]) -> int:
    """Return the numbers from span to span of states[S inner], float32, dense but for spans."""
    dense = [int(np.prod(inner[axis + 1 :])) for axis in range(len(inner))]
    strides = list(states.strides[1:])
    if states.shape[1:] != inner or strides != dense or states.dtype != np.float32:
        raise ShapeError(
            f"{name}: float32 spans of {inner}, each one after another, got {states.dtype} "
            f"{states.shape} with strides {states.strides}"
        )
    return states.strides[0]


def source(path: str, *headers: str, kernels: tuple[Signature[Any], ...]) -> Source:
    """Return the source of a kernel that goes through slices."""
    return Source(
        "spaninfer_kernels_cuda",
        f"delta_rule/{path}",
        headers=("types.cuh", "overlap.cuh", "math.cuh", "reduce.cuh", *headers),
        parts=("delta_rule/slices.cuh", "delta_rule/gates.cuh"),
        kernels=kernels,
    )
