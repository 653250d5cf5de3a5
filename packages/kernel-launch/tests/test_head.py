"""Division of heads among lanes: tables."""

import pytest
from spaninfer_kernel_launch import HeadDivision, divide_head


@pytest.mark.parametrize(
    ("itemsize", "size", "rotary_len", "division"),
    [
        (2, 64, 64, HeadDivision(vector=8, lanes=4)),
        (2, 96, 96, HeadDivision(vector=8, lanes=8)),
        (2, 128, 0, HeadDivision(vector=8, lanes=8)),
        (4, 128, 128, HeadDivision(vector=4, lanes=16)),
        (2, 256, 64, HeadDivision(vector=8, lanes=16)),
        (2, 80, 20, HeadDivision(vector=2, lanes=32)),
        (2, 576, 64, HeadDivision(vector=8, lanes=32)),
        (2, 6, 6, HeadDivision(vector=1, lanes=4)),
    ],
)
def test_heads_are_divided(itemsize, size, rotary_len, division):
    assert divide_head(itemsize, size, rotary_len) == division


@pytest.mark.parametrize("itemsize", [2, 4])
def test_every_unit_divides_what_is_rotated_and_what_is_not(itemsize):
    for size in range(2, 600, 2):
        for rotary_len in range(0, size + 1, 2):
            division = divide_head(itemsize, size, rotary_len)

            assert size % (2 * division.vector) == rotary_len % (2 * division.vector) == 0
            assert division.vector * itemsize <= 16
            assert 32 % division.lanes == 0
