"""Grids of the kernel that derives a step's inputs: a table."""

import pytest
from spaninfer_kernels_cuda.inputs.tuning import launch_of, token_blocks


@pytest.mark.parametrize(
    ("rows", "blocks"), [(1, 1), (4, 1), (5, 2), (64, 16), (256, 64), (257, 128), (8192, 1024)]
)
def test_every_row_has_a_warp_up_to_a_limit(rows, blocks):
    launch = launch_of(token_blocks(rows))

    assert launch.grid == (blocks, 1, 1)
    assert launch.block == (128, 1, 1)


def test_few_launches_serve_all_sizes():
    assert len({token_blocks(rows) for rows in range(1, 10_000)}) == 11


def test_every_segment_has_a_block():
    assert launch_of(70).grid == (70, 1, 1)
