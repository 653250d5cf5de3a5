"""Kernels against the roofline."""

import pytest
from spaninfer.bench.cpu.case import Case, timed
from spaninfer.bench.cpu.kernels import attention_cases
from spaninfer.bench.cpu.limits import Limits, Work, records

LIMITS = Limits(read=(30.0, 40.0), peaks={"int8": (500.0, 400.0), "float32": (100.0,)})


@pytest.mark.parametrize(
    ("num_bytes", "operations", "share"),
    [(2_000_000, 1_000_000, 0.5), (1_000_000, 40_000_000, 0.8)],
)
def test_the_share_is_that_of_the_nearer_limit_and_limits_are_their_best_run(
    num_bytes, operations, share
):
    rates = Work("int8", num_bytes, operations).rates(100e-6, LIMITS)

    assert rates["of_ceiling"] == share


def test_a_case_is_timed_as_often_as_asked_and_called_at_least_once_more():
    calls = []
    case = Case("product", {"rows": 1}, Work("int8", 100, 100), run=lambda: calls.append(1))

    fields = timed(case, LIMITS, runs=2)

    assert (fields["benchmark"], fields["kernel"], fields["rows"]) == ("kernel", "product", 1)
    assert len(fields["runs"]) == 2
    assert len(calls) > 2


def test_limits_are_records_with_all_their_runs():
    read, int8, float32 = records(LIMITS)

    assert (read["ceiling"], read["unit"], read["runs"]) == ("read", "GB/s", [30.0, 40.0])
    assert (int8["unit"], int8["median"]) == ("Gop/s", 450.0)
    assert "float32" in float32["ceiling"]


def test_attention_counts_keys_and_values_once_and_what_rows_see():
    one, _eight, prompt = attention_cases()

    assert one.work.num_bytes == 4001 * 2 * 2 * 64 * 4
    assert one.work.operations == 4 * 4001 * 14 * 64
    assert prompt.work.operations == 4 * (256 * 257 // 2) * 14 * 64
    one.run()
