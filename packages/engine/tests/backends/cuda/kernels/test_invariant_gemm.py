"""Batch-invariant GEMMs: rows are bit-identical whatever rows share the batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from spaninfer_engine.backends.cuda.kernels.invariant_gemm import InvariantGemm  # noqa: E402

pytestmark = pytest.mark.gpu

MAX_ROWS = 600


@pytest.fixture
def products() -> Iterator[InvariantGemm]:
    """Products, with cuBLAS as it was before once the test is over."""
    matmul = torch.backends.cuda.matmul
    names = [f"allow_{dtype}_reduced_precision_reduction" for dtype in ("bf16", "fp16")]
    before = [(getattr(matmul, name), getattr(matmul, f"{name}_split_k")) for name in names]
    library = torch.backends.cuda.preferred_blas_library()
    yield InvariantGemm()
    torch.backends.cuda.preferred_blas_library(library)  # an engine of another test may need it
    for name, allowed in zip(names, before, strict=True):
        setattr(matmul, name, allowed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(("outputs", "inputs"), [(896, 4864), (3584, 3584), (1152, 896), (384, 96)])
def test_a_row_has_the_same_bits_among_any_rows(
    products: InvariantGemm, outputs: int, inputs: int, biased: bool, dtype: torch.dtype
) -> None:
    generator = torch.Generator("cuda").manual_seed(1)
    x, weight, vector = (
        torch.randn(shape, dtype=dtype, device="cuda", generator=generator)
        for shape in ((MAX_ROWS, inputs), (outputs, inputs), (outputs,))
    )
    bias = vector if biased else None
    whole = products.linear(x, weight, bias)

    expected = x.double() @ weight.double().T + (vector.double() if biased else 0)
    assert (whole - expected).abs().max() < 0.02 * expected.square().mean().sqrt()
    for rows in (1, 2, 7, 40, 64, 129, MAX_ROWS - 1):
        for first in (0, MAX_ROWS - rows):
            part = slice(first, first + rows)
            assert torch.equal(products.linear(x[part].clone(), weight, bias), whole[part])


def test_no_rows_give_no_rows(products: InvariantGemm) -> None:
    weight = torch.randn(16, 32, dtype=torch.bfloat16, device="cuda")

    assert products.linear(weight[:0], weight, None).shape == (0, 16)
