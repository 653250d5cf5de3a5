"""The slices of a step as kernels read them; made on the CPU here, which is a device too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from spaninfer_engine.ops.step import Run, Step
from spaninfer_engine.plan import Entry, Growth, Slice
from spaninfer_engine.request import SamplingParams
from spaninfer_engine.run.inputs import build
from spaninfer_engine.run.requests import Requests
from spaninfer_engine.spec.nodes import CacheGroup

torch = pytest.importorskip("torch")

from spaninfer_engine.ops.slices import Slices, slices_of  # noqa: E402
from spaninfer_engine.ops.torch import TorchOps  # noqa: E402

SPAN_LEN = 4
SPANS = {1: (7, 2, 5), 2: (3,), 3: (0, 6)}


def _step(*parts: tuple[int, int, int]) -> Step[Any]:
    ops, requests = TorchOps(), Requests(1, max_len=12, span_len=SPAN_LEN, num_rows=3)
    for request_id, spans in SPANS.items():
        requests.enter(Entry(request_id, (0,) * 12, SamplingParams(), 0))
        requests.grow(Growth(request_id, 0, 0, spans))
    cache = ops.cache(CacheGroup(0, (0,), 1, 8, 8), 8, SPAN_LEN)
    slices = [Slice(request_id, a, b, b, False, 0) for request_id, a, b in parts]
    return build(slices, requests, (), ops, (cache,))


def test_single_rows_in_front_are_decodes_and_the_rest_are_prefills() -> None:
    step = _step((1, 9, 10), (2, 0, 1), (3, 2, 7), (1, 10, 11))

    slices = slices_of(step, SPAN_LEN, torch.device("cpu"))

    first, second, third, fourth = (int(row) for row in slices.rows)
    assert slices.num_decodes == 2
    assert slices.prefills == (Run(2, 7, third, 2, 7), Run(7, 8, fourth, 10, 11))
    assert first == fourth != second
    assert slices.lengths.tolist() == [10, 1, 7, 11]
    assert slices.bounds.tolist() == [0, 1, 2, 7, 8]


def test_slots_name_the_place_of_every_row_in_the_pool() -> None:
    step = _step((1, 9, 10), (3, 2, 7))

    slices = slices_of(step, SPAN_LEN, torch.device("cpu"))

    expected = [5 * SPAN_LEN + 1, 2, 3, *(6 * SPAN_LEN + place for place in range(3))]
    assert slices.slots[0].tolist() == expected
    assert slices.slots[0].dtype == torch.int32
    row = int(slices.rows[1])
    np.testing.assert_array_equal(slices.tables[0][row, :2], [0, 6])


def test_wanted_rows_know_whose_they_are_and_what_they_see() -> None:
    step = replace(_step((1, 9, 10), (3, 2, 7)), wanted=torch.tensor([0, 3, 5]))

    slices = slices_of(step, SPAN_LEN, torch.device("cpu"))

    first, second = slices.rows.tolist()
    assert slices.wanted_rows.tolist() == [first, second, second]
    assert slices.wanted_lengths.tolist() == [10, 5, 7]


def _prompts(num_rows: int, num_slices: int) -> Slices:
    """Return prompts of as many rows each, the last one of which is wanted."""
    length = num_rows // num_slices
    rows, lengths = torch.arange(num_slices).int(), torch.full((num_slices,), length).int()
    bounds = torch.arange(0, num_rows + 1, length).int()
    slots = (torch.arange(num_rows).int() * 10,)
    return Slices(rows, lengths, bounds, slots, (), 0, (), rows, lengths)


def test_few_wanted_rows_are_decodes_of_what_they_see() -> None:
    slices = _prompts(num_rows=120, num_slices=3)

    few = slices.of_wanted(torch.tensor([39, 79, 119]))

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

    assert slices.of_wanted(torch.tensor(wanted, dtype=torch.int32)) is None
