"""`spaninfer fit` on the command line."""

from __future__ import annotations

import pytest


def rows(output: str) -> dict[str, list[str]]:
    """Return the cells of a table's rows, by the first."""
    lines = [line.strip("│ ").split("│") for line in output.splitlines() if line.startswith("│")]
    return {first.strip(): [cell.strip() for cell in cells] for first, *cells in lines}


def test_what_fits_is_a_table_by_format_and_length(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")

    result = call("fit", "--gpu-memory", "24GiB", "--kv-dtype", "fp8")

    assert result.exit_code == 0, result.output
    assert "KV cache fp8" in result.stdout
    assert [*rows(result.stdout)] == ["as they are", "fp8", "int8", "int4"]
    assert rows(result.stdout)["int4"][-1] == "4,096"  # the longest: the whole context
    assert "room for a request: as it is, or --quantize fp8, or" in result.stdout


@pytest.mark.parametrize(
    ("wanted", "status"),
    [((), 0), (("--requests", "2", "--max-len", "1024"), 0), (("--requests", "9000"), 1)],
)
def test_the_exit_status_answers_the_question(call, wanted, status):
    result = call("fit", "--host-memory", "128MiB", *wanted)

    assert result.exit_code == status, result.output
    assert ("no room for 9,000 requests of the whole context" in result.stderr) == (status == 1)


def test_two_machines_at_once_are_refused(refusal):
    said = refusal("fit", "--gpu-memory", "1GiB", "--host-memory", "1GiB")

    assert "--gpu-memory and --host-memory cannot be combined" in said
