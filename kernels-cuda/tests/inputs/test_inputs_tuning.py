"""Grids of the kernel that derives a step's inputs: a table."""

import pytest
from spaninfer_kernels_cuda.inputs.tuning import blocks_of, blocks_of_step, launch_of


@pytest.mark.parametrize(
    ("tokens", "logits", "blocks"),
    [(1, 0, 1), (1, 1, 1), (4, 4, 4), (5, 5, 8), (256, 1, 256), (257, 200, 256), (8192, 1, 1024)],
)
def test_every_part_has_a_warp_up_to_a_limit(tokens, logits, blocks):
    launch = launch_of(blocks_of_step(tokens, logits))

    assert launch.grid == (blocks, 1, 1)
    assert launch.block == (128, 1, 1)


def test_few_launches_serve_all_sizes():
    assert len({blocks_of_step(tokens, 1) for tokens in range(1, 10_000)}) == 11


@pytest.mark.parametrize(("threads", "blocks"), [(1, 1), (128, 1), (129, 2), (10**9, 1024)])
def test_threads_lie_in_blocks(threads, blocks):
    assert blocks_of(threads) == blocks


def test_every_segment_has_a_block():
    assert launch_of(70).grid == (70, 1, 1)
