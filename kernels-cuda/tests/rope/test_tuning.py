"""Division of heads among blocks: a table."""

import pytest
from spaninfer_kernel_launch import Launch
from spaninfer_kernels_cuda.rope.tuning import launch


@pytest.mark.parametrize(("rows", "blocks"), [(1, 2), (1024, 2), (2048, 2), (8192, 1)])
def test_few_rows_have_a_group_per_head_and_many_a_block_per_row(rows, blocks):
    step = launch(rows, heads=32, lanes=8, sm_count=132)

    assert step == Launch(grid=(rows, blocks, 1), block=(128, 1, 1), overlaps=True)


def test_no_rows_have_no_grid():
    assert launch(0, heads=32, lanes=8, sm_count=132) is None
