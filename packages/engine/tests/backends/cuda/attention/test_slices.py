"""The slices of a step as kernels read them; made on the CPU here, which is a device too."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch")

from spaninfer_engine.backends.cuda.attention.slices import AttentionSlices  # noqa: E402


def _prompts(num_rows: int, num_slices: int) -> AttentionSlices:
    """Return prompts of as many rows each, the last one of which is wanted."""
    length = num_rows // num_slices
    rows, lengths = torch.arange(num_slices).int(), torch.full((num_slices,), length).int()
    bounds = torch.arange(0, num_rows + 1, length).int()
    slots = (torch.arange(num_rows).int() * 10,)
    return AttentionSlices(rows, lengths, bounds, slots, (), 0, (), rows, lengths, 16)


def test_few_logit_positions_are_decodes_of_what_they_see() -> None:
    slices = _prompts(num_rows=120, num_slices=3)

    few = slices.of_logits(torch.tensor([39, 79, 119]))

    assert few is not None
    assert few.rows.tolist() == [0, 1, 2]
    assert few.lengths.tolist() == [40, 40, 40]
    assert few.slots[0].tolist() == [390, 790, 1190]
    assert (few.num_decodes, few.prefills) == (3, ())
    assert few.slots[0].dtype == torch.int32


@pytest.mark.parametrize(
    ("num_rows", "num_slices", "wanted"),
    [(120, 2, range(117, 120)), (120, 120, range(120)), (64, 1, [63]), (120, 1, [])],
    ids=["several of one prompt", "all rows", "few rows in all", "none"],
)
def test_other_rows_are_not_computed_apart(
    num_rows: int, num_slices: int, wanted: Sequence[int]
) -> None:
    slices = _prompts(num_rows, num_slices)

    assert slices.of_logits(torch.tensor(wanted, dtype=torch.int32)) is None


def test_rows_that_pad_a_step_are_known_among_all_rows_and_among_those_with_logits() -> None:
    rows = torch.tensor([3, -1]).int()  # of logits; the second is padding
    slots = torch.tensor([64, 65, 66, -1]).int()
    bounds = torch.tensor([0, 3, 3]).int()
    slices = AttentionSlices(rows, rows, bounds, (slots,), (), 0, (), rows, rows, 16)

    assert (slices.slots_of(4) < 0).tolist() == [False, False, False, True]
    assert (slices.slots_of(2) < 0).tolist() == [False, True]


def test_where_nothing_is_kept_no_row_is_known_to_be_padding() -> None:
    rows = torch.tensor([0]).int()

    assert AttentionSlices(rows, rows, rows, (), (), 0, (), rows, rows, 16).slots_of(1) is None
