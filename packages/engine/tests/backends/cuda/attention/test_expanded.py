"""Choice between floats and codes for prompts; kernels are stand-ins here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from span_attention import Format, SpanLayout

torch = pytest.importorskip("torch")

from spaninfer_engine.backends.cuda.attention.expanded import (  # noqa: E402
    ExpandedPrefill,
    columns_to_expand,
)
from spaninfer_engine.backends.cuda.attention.plan import Plan, Pool  # noqa: E402
from spaninfer_engine.backends.cuda.attention.slices import AttentionSlices  # noqa: E402
from spaninfer_engine.backends.cuda.kernels.attention import AttentionKernels  # noqa: E402
from spaninfer_engine.step.batch import Run  # noqa: E402

LAYOUT = SpanLayout.contiguous(
    span_len=32, kv_heads=2, key_size=128, value_size=128, format=Format.FP8, num_layers=2
)


@pytest.mark.parametrize(
    ("runs", "columns"),
    [
        ([Run(0, 4000, 0, 0, 4000)], 125),
        ([Run(0, 4000, 0, 12_000, 16_000)], 500),
        ([Run(0, 4000, 0, 12_001, 16_001)], None),  # a span more than four tokens a row
        ([Run(0, 100, 3, 0, 100), Run(100, 130, 1, 10, 40)], 4),
        ([Run(0, 100, 3, 0, 100), Run(100, 101, 1, 899, 900)], None),  # much is read for one row
        ([], None),  # captured: they may become any
    ],
)
def test_spans_are_expanded_where_many_rows_read_them(runs: list[Run], columns: int | None) -> None:
    assert columns_to_expand(runs, 32) == columns


def test_a_prompt_reads_floats_of_the_spans_that_its_tables_name() -> None:
    kernels = _kernels(expands=True)

    (prefill,) = _plan(kernels)._plan(0, 4, None, 128)

    assert isinstance(prefill, ExpandedPrefill)
    asked = kernels.attention.expansion.call_args.args
    assert asked == (LAYOUT, 2, 4, 7)  # slices, spans of the longest, numbers of a table's row
    planned = kernels.attention.batch_prefill.return_value.plan.call_args
    assert kernels.attention.batch_prefill.call_args.args == ("floats", 4)
    assert planned.args[2].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert planned.kwargs["table_rows"].tolist() == [0, 1]


@pytest.mark.parametrize(("expands", "window"), [(False, None), (True, 64)])
def test_without_a_kernel_for_floats_and_with_a_window_codes_are_read(
    *, expands: bool, window: int | None
) -> None:
    kernels = _kernels(expands=expands)

    _plan(kernels)._plan(0, 4, window, 128)

    kernels.attention.expansion.assert_not_called()
    assert kernels.attention.batch_prefill.call_args.args == (LAYOUT, 4)


def _kernels(*, expands: bool) -> Any:
    attention = MagicMock()
    attention.expands.return_value = expands
    attention.expansion.return_value.floats = "floats"
    tables = AttentionKernels._make_expanded_tables
    host = SimpleNamespace(_kernels=SimpleNamespace(device=torch.device("cpu")))
    attention.expanded_tables.side_effect = lambda *sizes: tables(host, *sizes)  # type: ignore[arg-type]
    return SimpleNamespace(attention=attention, batch_invariant=False, stream=0)


def _plan(kernels: Any) -> Plan:
    lengths = torch.tensor([100, 28]).int()
    slices = AttentionSlices(
        rows=torch.tensor([1, 0]).int(),
        lengths=lengths,
        bounds=torch.tensor([0, 100, 128]).int(),
        slots=(),
        tables=(torch.zeros((3, 7)).int(),),
        num_decodes=0,
        prefills=(Run(0, 100, 1, 0, 100), Run(100, 128, 0, 0, 28)),
        logit_rows=lengths,
        logit_seq_lens=lengths,
        span_len=32,
    )
    return Plan(slices, (), {0: Pool.at(0, LAYOUT)}, kernels)
