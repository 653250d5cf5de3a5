"""Variants compile without spilling: each value of a macro; `-m sweep` takes each pair of values,
and `nox -s compile` all variants.
"""

from concurrent.futures import ProcessPoolExecutor

import pytest
from kernels_of_runs import kernels_of_runs
from spaninfer_kernel_launch import ARCHITECTURES, compile_variant, pairwise_cover, value_cover
from spaninfer_kernel_launch.compile_report import variants_of

VARIANTS = tuple(variants_of("span_attention"))
CASES = value_cover(VARIANTS)


@pytest.fixture(scope="module")
def compiled(request):
    """A case, compiled by this run, or by one before of the same text, options and compiler.

    Where the tests are not shared out, all cases are compiled by one process per CPU. Workers of
    pytest-xdist are that many already, and another's cases are not theirs.
    """
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cu12 or cu13")
    cache = kernels_of_runs(request.config)
    if hasattr(request.config, "workerinput"):
        yield lambda case: compile_variant(*case, cache)
        return
    pool = ProcessPoolExecutor()
    jobs = {case: pool.submit(compile_variant, *case, cache) for case in CASES}
    yield lambda case: jobs[case].result() if case in jobs else compile_variant(*case, cache)
    pool.shutdown(cancel_futures=True)


def pytest_generate_tests(metafunc):
    """Pairs of values are searched for where they are asked for: that takes a second."""
    if "pair" in metafunc.fixturenames:
        pairs = [case for case in pairwise_cover(VARIANTS) if case not in CASES]
        metafunc.parametrize("pair", pairs, ids=name_of)


def name_of(case):
    return f"{case[0]}-{case[1]}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_variant_compiles_without_spilling(compiled, case):
    check(case, compiled(case).reports)


@pytest.mark.sweep
def test_a_variant_of_two_values_compiles_without_spilling(compiled, pair):
    check(pair, compiled(pair).reports)


def check(case, reports):
    variant, _ = case
    assert {kernel.entry for kernel in variant.source.kernels} == reports.keys()
    for entry, report in reports.items():
        assert (report.spill_bytes, report.stack_bytes) == (0, 0), entry


def test_every_architecture_is_covered():
    assert {arch for _, arch in CASES} == set(ARCHITECTURES)
