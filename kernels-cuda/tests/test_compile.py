"""A pairwise cover of the variants compiles without spilling; `nox -s compile` takes them all."""

from concurrent.futures import ProcessPoolExecutor

import pytest
from spaninfer_kernel_launch import ARCHITECTURES, compile_variant, pairwise_cover
from spaninfer_kernel_launch.survey import variants_of

CASES = pairwise_cover(variants_of("spaninfer_kernels_cuda"))


@pytest.fixture(scope="module")
def compiling():
    """Every case, compiled by as many processes as there are CPUs: alone it takes minutes."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cu12 or cu13")
    pool = ProcessPoolExecutor()
    yield {case: pool.submit(compile_variant, *case) for case in CASES}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_variant_compiles_without_spilling(compiling, case):
    variant, _ = case

    reports = compiling[case].result().reports

    assert variant.entry in reports
    for entry, report in reports.items():
        assert (report.spill_bytes, report.stack_bytes) == (0, 0), entry


def test_every_architecture_is_covered():
    assert {arch for _, arch in CASES} == set(ARCHITECTURES)
