"""Choice between floats and codes for prompts; kernels are stand-ins here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from span_attention import Format, SpanLayout, expand

torch = pytest.importorskip("torch")

from spaninfer_engine.backends.cuda.attention.expanded import (  # noqa: E402
    ExpandedPrefill,
    are_better_expanded,
    spans_of_prompts,
)
from spaninfer_engine.backends.cuda.attention.plan import GroupCache, Plan  # noqa: E402
from spaninfer_engine.backends.cuda.attention.slices import AttentionSlices  # noqa: E402
from spaninfer_engine.backends.cuda.graphs.memory import Sizes  # noqa: E402
from spaninfer_engine.backends.cuda.kernels import attention  # noqa: E402
from spaninfer_engine.backends.cuda.kernels.attention import (  # noqa: E402
    AttentionKernels,
    ExpandedRoom,
)
from spaninfer_engine.backends.cuda.warmup import largest_batch  # noqa: E402
from spaninfer_engine.step.batch import Run  # noqa: E402

LAYOUT = SpanLayout.contiguous(
    span_len=32, kv_heads=2, key_size=128, value_size=128, format=Format.FP8, num_layers=2
)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([Run(0, 4000, 0, 0, 4000)], True),
        ([Run(0, 40, 0, 15_960, 16_000)], True),
        ([Run(0, 40, 0, 15_961, 16_001)], False),  # a span more than there is room for
        ([Run(0, 40, 0, 7960, 8000), Run(40, 80, 0, 7960, 8001)], False),
        ([Run(0, 100, 3, 0, 100), Run(100, 101, 1, 899, 900)], True),
        ([Run(0, 16, 3, 0, 16), Run(16, 32, 1, 884, 900)], True),
        ([Run(0, 16, 3, 0, 16), Run(16, 31, 1, 885, 900)], False),  # 15.5 rows a slice
        ([], True),  # captured, and replayed where there is room
    ],
)
def test_spans_are_expanded_where_enough_rows_read_them(runs: list[Run], *, expected: bool) -> None:
    assert are_better_expanded(runs, 32, capacity=500) is expected


def test_the_spans_of_a_steps_prompts_are_counted_behind_its_decodes() -> None:
    sizes = Sizes(
        requests=3, rows=68, max_len=40, span_len=8, num_groups=1, prompt_logits=1
    )  # 1 decode, and two prompts of 33 new tokens behind 7 others

    batch = largest_batch(sizes)
    batch.stops[0] = 500

    assert (batch.num_decodes, batch.stops.tolist()) == (1, [500, 40, 40])
    assert spans_of_prompts(batch, 8) == 10
    assert spans_of_prompts(batch, 16) == 6


@pytest.mark.parametrize("prompts", [(Run(0, 100, 1, 0, 100), Run(100, 128, 0, 0, 28)), ()])
def test_a_prompt_reads_floats_of_the_spans_that_its_tables_name(prompts: tuple[Run, ...]) -> None:
    kernels = _kernels(most=5)
    plan = _plan(kernels, prompts)

    (prefill,) = plan._plan(0, 4, None, 128)

    assert isinstance(prefill, ExpandedPrefill)
    planned = kernels.attention.expansion.return_value.plan.call_args
    slices = plan.slices
    assert planned.args[0] == expand.Sequences(
        slices.tables[0].data_ptr(), slices.rows.data_ptr(), slices.lengths.data_ptr(), 2, 7
    )
    assert planned.kwargs["capacity"] == 5
    _, written = planned.kwargs["out"]
    assert kernels.attention.batch_prefill.call_args.args == ("floats", 4)
    planned = kernels.attention.batch_prefill.return_value.plan.call_args
    tables, begins = planned.args[2], planned.kwargs["table_rows"]
    assert [tables[row, :3].tolist() for row in (0, 2)] == [[0, 1, 2], [2, 3, 4]]
    assert (begins.data_ptr(), begins.shape, begins.dtype) == (written, (2,), torch.int32)


@pytest.mark.parametrize(("most", "window"), [(0, None), (3, None), (5, 64)])
def test_without_room_or_a_kernel_for_floats_and_with_a_window_codes_are_read(
    most: int, window: int | None
) -> None:
    kernels = _kernels(most)
    prompts = Run(0, 100, 1, 0, 100), Run(100, 128, 0, 0, 28)

    _plan(kernels, prompts)._plan(0, 4, window, 128)

    kernels.attention.expansion.assert_not_called()
    assert kernels.attention.batch_prefill.call_args.args == (LAYOUT, 4)


def test_spans_that_are_expanded_share_a_memory_of_one_size(monkeypatch: Any) -> None:
    monkeypatch.setattr(attention, "EXPANDED_BYTES", 200_000)
    kernels = SimpleNamespace(
        batch_invariant=False,
        element=np.dtype(np.float16),
        gpu=SimpleNamespace(arch="sm_90a"),
        device=torch.device("cpu"),
    )
    made = AttentionKernels(kernels)  # type: ignore[arg-type]

    assert made.most_expanded(LAYOUT) == 200_000 // (32 * 2 * (128 + 128) * 2)
    assert made.expanded_room(LAYOUT).memory is made.expanded_room(_narrow(1)).memory
    assert made.expanded_room(_narrow(1)).capacity == 2 * made.most_expanded(LAYOUT)
    assert made.most_expanded(_narrow(1, Format.FLOAT16)) == 0
    kernels.batch_invariant = True
    assert AttentionKernels(kernels).most_expanded(LAYOUT) == 0  # type: ignore[arg-type]


def _narrow(kv_heads: int, format: Format = Format.INT8) -> SpanLayout:
    return SpanLayout.contiguous(
        span_len=32, kv_heads=kv_heads, key_size=128, value_size=128, format=format, num_layers=1
    )


def _kernels(most: int) -> Any:
    made = MagicMock()
    made.most_expanded.return_value = most
    made.expansion.return_value.floats = "floats"
    names = torch.arange(2 * most, dtype=torch.int32).as_strided((most, most), (1, 1))
    made.expanded_room.return_value = ExpandedRoom(torch.zeros(8), names)
    device = torch.device("cpu")
    return SimpleNamespace(attention=made, batch_invariant=False, stream=0, device=device)


def _plan(kernels: Any, prompts: tuple[Run, ...]) -> Plan:
    lengths = torch.tensor([100, 28]).int()
    slices = AttentionSlices(
        rows=torch.tensor([1, 0]).int(),
        lengths=lengths,
        bounds=torch.tensor([0, 100, 128]).int(),
        slots=(),
        tables=(torch.zeros((3, 7)).int(),),
        num_decodes=0,
        prefills=prompts,
        logit_rows=lengths,
        logit_seq_lens=lengths,
        span_len=32,
    )
    return Plan(slices, (), {0: GroupCache.at(0, LAYOUT)}, kernels)
