"""Kernel requests recorded at start."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from spaninfer_engine.backends.cuda.ops import CudaOps


def test_kernels_are_noted_with_launches_of_their_own() -> None:
    """An attempt before may have prepared real ones; those of the walk do nothing."""
    ops = CudaOps("float16", device="cpu")
    prepare = ops.kernels._append_form  # the one that needs no GPU
    kept = [prepare(False, False, 0)]

    ops.compile(lambda: kept.append(prepare(False, False, 0)), lambda _done, _of: None)
    kept.append(prepare(False, False, 0))

    assert len({id(each) for each in kept}) == 3
