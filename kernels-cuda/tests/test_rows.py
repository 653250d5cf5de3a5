"""Division of a row among threads: a table."""

import pytest
from spaninfer_kernel_launch import Launch, ShapeError
from spaninfer_kernels_cuda.rows import MANY_ROWS, Division, divide, divide_for, launch


@pytest.mark.parametrize(
    ("channels", "itemsize", "division"),
    [
        (1, 2, Division(vector=1, threads=32, packs=1)),
        (64, 4, Division(vector=4, threads=32, packs=1)),
        (128, 2, Division(vector=8, threads=32, packs=1)),
        (896, 2, Division(vector=8, threads=128, packs=1)),
        (4096, 2, Division(vector=8, threads=512, packs=1)),
        (5120, 2, Division(vector=8, threads=512, packs=2)),
        (4096, 4, Division(vector=4, threads=512, packs=2)),
        (16_384, 2, Division(vector=8, threads=512, packs=4)),
        (20_480, 2, Division(vector=8, threads=512, packs=5)),
        (32_768, 2, Division(vector=8, threads=512, packs=8)),
        (1001, 2, Division(vector=1, threads=512, packs=2)),
        (1002, 2, Division(vector=2, threads=512, packs=1)),
    ],
)
def test_rows_are_divided(channels, itemsize, division):
    assert divide(channels, itemsize) == division


@pytest.mark.parametrize(
    ("channels", "itemsize", "division"),
    [
        (3584, 2, Division(vector=8, threads=128, packs=4)),
        (16_384, 2, Division(vector=8, threads=256, packs=8)),
        (64, 2, Division(vector=8, threads=64, packs=1)),
        (8192, 4, Division(vector=4, threads=256, packs=8)),
        (18_944, 2, divide(18_944, 2)),  # 256 threads do not hold it
    ],
)
def test_many_rows_have_fewer_threads_each(channels, itemsize, division):
    assert divide_for(MANY_ROWS, channels, itemsize) == division
    assert divide_for(MANY_ROWS - 1, channels, itemsize) == divide(channels, itemsize)


@pytest.mark.parametrize("rows", [1, MANY_ROWS])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_every_element_of_every_row_has_a_thread(itemsize, rows):
    for channels in [*range(1, 2100), *range(4096, 16_384, 56)]:
        division = divide_for(rows, channels, itemsize)

        loads = channels // division.vector
        assert channels % division.vector == 0
        assert division.vector * itemsize <= 16
        assert loads <= division.threads * division.packs
        assert division.threads % 32 == 0


@pytest.mark.parametrize(
    ("channels", "itemsize", "message"),
    [
        (0, 2, "of 0 channels; at least 1"),
        (32_776, 2, "of 32776 channels of 2 bytes, loaded by 8; at most 32768"),
        (4097, 4, "loaded by 1; at most 4096"),
    ],
)
def test_rows_that_no_block_can_hold_are_refused(channels, itemsize, message):
    with pytest.raises(ShapeError, match=message):
        divide(channels, itemsize)


def test_each_row_has_a_block_and_no_rows_no_launch():
    assert launch(7, divide(4096, 2)) == Launch(grid=(7, 1, 1), block=(512, 1, 1), overlaps=True)
    assert launch(0, divide(4096, 2)) is None
