"""Choice of the norms that write codes alone; binding needs no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import SEED
from families import FAMILIES
from host_packing import pack_on_host
from oracle import Oracle
from spaninfer_engine.backends.cuda.fusions.coded_norms import NormKernel, Projection
from spaninfer_engine.backends.cuda.fusions.coded_norms import _readers as readers_of
from spaninfer_engine.backends.cuda.kernels.kernels import Kernels
from spaninfer_engine.backends.cuda.ops import CudaOps
from spaninfer_engine.backends.cuda.weights.packing import WeightForms
from spaninfer_engine.backends.cuda.weights.quantised import format_of_packing
from spaninfer_engine.backends.cuda.weights.scaled import codes_of_packing
from spaninfer_engine.load.packed.packing import packing_of
from spaninfer_engine.ops.bound import TEXT, BoundKernel
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.program.bind import bind
from spaninfer_engine.program.lower import lower
from spaninfer_kernels_cuda.norm import NormOptions
from spaninfer_kernels_cuda.scaled_gemm import Codes
from stepping import Model
from wide import WIDE

torch = pytest.importorskip("torch")


def _norms(name: str, folder: Path, weights: WeightForms) -> tuple[list[bool], int]:
    """Return whether norms of sums write codes alone, in their order, and how many layers are."""
    family = {**FAMILIES, **{f"wide {key}": value for key, value in WIDE.items()}}[name]
    model = Model(Oracle(family, SEED).save(folder))
    ops = CudaOps("bfloat16", "cpu", model.decoder.groups, weights=weights)
    kernels = bind(lower(model.decoder), ops, model.checkpoint.reader)[TEXT].kernels
    made = [each.kernel for each in kernels if isinstance(each.kernel, NormKernel)]
    layers = sum("append" in each.name for each in kernels)
    return [all(norm.codes_only for norm in each.norms) for each in made], layers


@pytest.mark.parametrize("quantize", ["fp8", "w4afp8"])
@pytest.mark.parametrize("name", ["wide llama3", "wide qwen3"])
def test_norms_between_projections_of_codes_write_nothing_else(
    name: str, quantize: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_on_host(monkeypatch)
    packing = packing_of(quantize)
    rounding = codes_of_packing(packing) or format_of_packing(packing)

    alone, layers = _norms(name, tmp_path, WeightForms(rounding))

    # The last attention computes some rows again, and the head is a projection like any other.
    read_elsewhere = {2 * (layers - 1) - 1, 2 * layers - 1}
    assert layers > 1
    assert alone == [number not in read_elsewhere for number in range(2 * layers)]


@pytest.mark.parametrize("quantize", [None, "int4"])
def test_norms_before_numbers_write_numbers(
    quantize: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_on_host(monkeypatch)
    weights = WeightForms(format_of_packing(packing_of(quantize)))

    alone, layers = _norms("wide llama3", tmp_path, weights)

    assert alone == [False] * 2 * layers


def test_readers_behind_another_norm_or_the_end_of_the_program_are_not_found() -> None:
    reads, last = _kernel("linear", inputs=(1,)), _kernel("linear", inputs=(1,), frees=(1,))
    other = _kernel("rms_norm", inputs=(2,))

    assert readers_of([reads, last], 1) == [reads, last]
    assert readers_of([other, last], 1) == []
    assert readers_of([reads, other, last], 1) == []
    assert readers_of([last, other], 1) == [last]
    assert readers_of([reads], 1) == []  # which is the program's result


def _kernel(operator: str, inputs: tuple[int, ...], frees: tuple[int, ...] = ()) -> BoundKernel:
    operation: Any = Operation(operator, (), ("x",))
    return BoundKernel(operator, (operation,), Projection(print, None), inputs, (3,), frees)


def test_rows_that_only_codes_stand_for_are_read_by_no_one_else() -> None:
    kernels = Kernels(torch.bfloat16, torch.device("cpu"))
    kernels.scaled.expect(64, Codes("fp8"))
    rows = torch.empty((3, 64), dtype=torch.bfloat16, device="meta")

    codes = kernels.scaled.coded_rows(rows)

    assert codes is not None
    assert codes.codes.device.type == "cpu"
    assert kernels.scaled.quantize_rows(rows, Codes("fp8")) is codes
    with pytest.raises(AssertionError, match="only codes were written"):
        kernels.scaled.quantize_rows(torch.empty_like(rows), Codes("fp8"))


def test_codes_alone_need_a_gemm_that_expects_them() -> None:
    kernels = Kernels(torch.bfloat16, torch.device("cpu"))
    x = torch.zeros((3, 64), dtype=torch.bfloat16)

    with pytest.raises(AssertionError, match="no GEMM expects codes"):
        kernels.norm_rows(NormOptions("rms"), x, x[0], eps=1e-6, codes_only=True)
