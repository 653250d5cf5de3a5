"""Blocks per row of logits, and sizes that are refused: tables."""

import numpy as np
import pytest
from spaninfer_kernel_launch import ShapeError
from spaninfer_kernels_cuda.sample import PARAMETERS, defaults
from spaninfer_kernels_cuda.sample.tuning import blocks_of_row, check

H200 = {2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15, 16: 7}  # clusters that run at once


@pytest.mark.parametrize(
    ("rows", "blocks"),
    [
        (1, 16),
        (7, 16),
        (8, 8),
        (15, 8),
        (16, 6),
        (18, 5),
        (30, 4),
        (32, 3),
        (40, 2),
        (66, 2),
        (67, 1),
        (4000, 1),
    ],
)
def test_blocks_share_rows_while_all_of_them_run_at_once(rows, blocks):
    assert blocks_of_row(rows, H200) == blocks


def test_without_clusters_a_block_has_its_row_alone():
    assert blocks_of_row(1, {}) == 1


@pytest.mark.parametrize(
    ("rows", "length", "top", "message"),
    [
        (1, 0, 0, "rows have 0 logits; at least 1, at most 8388608"),
        (1, 2**23 + 1, 0, "rows have 8388609 logits"),
        (65_536, 100, 0, "65536 rows; at most 65535"),
        (1, 100, 129, "129 top log-probabilities; at most 128"),
    ],
)
def test_what_no_kernel_takes_is_refused(rows, length, top, message):
    with pytest.raises(ShapeError, match=message):
        check(rows, length, top)


def test_a_default_record_asks_for_nothing_but_a_draw():
    [wanted] = defaults(1)

    asked = {name: wanted[name].item() for name in PARAMETERS.names if wanted[name]}
    assert asked == {
        "temperature": 1.0,
        "typical_p": 1.0,
        "top_p": 1.0,
        "repetition": 1.0,
        "logprobs": -1,
    }


def test_a_record_has_the_layout_of_the_kernels_struct():
    offsets = [PARAMETERS.fields[name][1] for name in PARAMETERS.names]

    assert offsets == [0, *range(8, 8 + 4 * 20, 4)]
    assert PARAMETERS.itemsize % np.dtype(np.uint64).alignment == 0
