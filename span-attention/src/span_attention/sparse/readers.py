"""The tokens of a step as they read keys: which sequence is theirs, how much of it they see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Gpu,
    check_dense,
    check_rows,
    gpu_of,
    match,
    view_at,
)


@dataclass(frozen=True, slots=True)
class Readers:
    """T tokens of a step: token t sees the first lengths[t] positions of the sequence whose spans
    are span_tables[table_rows[t]].

    span_tables[N M], table_rows[T] and lengths[T] are int32 on the GPU. A token that pads the step
    has length 0. Where all tokens are of `one_sequence`, in its order, as in a prompt, four of them
    read keys together. Nothing is read on the host: that the numbers are consistent is not checked.
    """

    span_tables: object
    table_rows: object
    lengths: object
    one_sequence: bool = False


def check_readers(specs: tuple[ArraySpec, ...]) -> tuple[int, int, int, Gpu]:
    """Return the tokens, the columns of the tables and their stride, and the GPU.

    `specs` are those of span_tables, table_rows and lengths. Raises ShapeError, DTypeError or
    DeviceError.
    """
    tables, rows, lengths = map(view_at, specs)
    sizes = match(span_tables=(tables, "N M"), table_rows=(rows, "T"), lengths=(lengths, "T"))
    check_dense(np.int32, table_rows=rows, lengths=lengths)
    check_rows(np.int32, 4, span_tables=tables)
    gpu = gpu_of(span_tables=tables, table_rows=rows, lengths=lengths)
    return sizes["T"], sizes["M"], tables.strides[0], gpu
