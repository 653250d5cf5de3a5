"""Tiles and grids of expert layers by size: tables."""

import pytest
from spaninfer_kernel_launch import ShapeError
from spaninfer_kernels_cuda.moe.tuning import (
    MoeShape,
    RouteShape,
    Tile,
    check_route,
    check_shape,
    cluster_blocks,
    combine_threads,
    down_tile,
    experts_per_lane,
    launch_choice,
    launch_gemv,
    launch_route,
    launch_sort,
    takes_gemv,
    up_tile,
)


def test_lanes_hold_all_experts_and_groups_take_whole_lanes():
    every = ((n, groups) for n in range(1, 513) for groups in range(1, 33) if n % groups == 0)
    for experts, groups in every:
        held = experts_per_lane(experts, groups)

        assert 32 * held >= experts
        assert groups == 1 or experts // groups % held == 0


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (RouteShape(1, 513, 8), "513 experts; at least 1, at most 512"),
        (RouteShape(1, 0, 1), "0 experts"),
        (RouteShape(1, 64, 8, groups=5), "5 groups of 64 experts"),
        (RouteShape(1, 64, 8, groups=8, group_topk=9), "group_topk is 9; at least 1, at most 8"),
        (RouteShape(1, 64, 9, groups=8, group_topk=1), "top_k is 9 of 8 experts"),
        (RouteShape(1, 512, 33), "top_k is 33 of 512 experts; at least 1, at most 32"),
        (RouteShape(1, 64, 30, shared=3), "3 shared experts beside top_k = 30; at most 2"),
        (RouteShape(2**31, 64, 8), "2147483648 tokens; at most 268435455"),
    ],
)
def test_choices_without_a_kernel_are_refused(shape, message):
    with pytest.raises(ShapeError, match=message):
        check_route(shape)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (MoeShape(1, 0, 64, 64), "top_k is 0; at least 1, at most 32"),
        (MoeShape(1, 2, 60, 64), "channels is 60; a multiple of 8 is needed"),
        (MoeShape(1, 2, 64, 0), "inner is 0; a multiple of 8 is needed"),
    ],
)
def test_layers_without_a_kernel_are_refused(shape, message):
    with pytest.raises(ShapeError, match=message):
        check_shape(shape)


@pytest.mark.parametrize(
    ("tokens", "arch", "blocks", "of_block", "warps"),
    [
        (0, "sm_90a", 1, 1, 4),
        (9, "sm_90a", 1, 9, 9),
        (64, "sm_90a", 8, 8, 8),
        (256, "sm_90a", 8, 32, 32),
        (257, "sm_90a", 16, 17, 17),
        (64, "sm_80", 1, 64, 32),
    ],
)
def test_a_cluster_routes_and_sorts(tokens, arch, blocks, of_block, warps):
    shape = RouteShape(tokens, 128, 8)

    grid = launch_route(shape, cluster_blocks(shape, arch))

    assert grid.of_block == of_block
    assert grid.launch.grid == grid.launch.cluster == (blocks, 1, 1)
    assert grid.launch.block == (32 * warps, 1, 1)


@pytest.mark.parametrize(("experts", "most"), [(128, 1024), (256, 1024), (384, 512), (512, 512)])
def test_more_tokens_are_sorted_by_launches_of_their_own(experts, most):
    shapes = [RouteShape(tokens, experts, 8) for tokens in range(1100)]

    sorted_at_once = [shape.tokens for shape in shapes if cluster_blocks(shape, "sm_90a")]

    assert sorted_at_once == list(range(most + 1))
    assert cluster_blocks(RouteShape(65, experts, 8), "sm_80") == 0
    assert cluster_blocks(RouteShape(257, experts, 8), "sm_100a") == 0
    assert launch_sort(RouteShape(1025, experts, 8)).grid == (5, 1, 1)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("experts", "words"), [(8, 32), (512, 16)])
def test_blocks_of_a_cluster_have_all_tokens_and_a_thread_for_each_expert(arch, experts, words):
    shapes = [RouteShape(tokens, experts, 2) for tokens in range(1025)]
    for shape in shapes:
        if not (blocks := cluster_blocks(shape, arch)):
            continue

        grid = launch_route(shape, blocks)

        assert blocks * grid.of_block >= shape.tokens
        assert blocks * -(-grid.of_block // 32) <= words  # of a set
        assert grid.of_block <= 4 * words  # tokens that shared memory of a block holds
        assert experts <= grid.launch.block[0] <= (1024 if experts <= 256 else 512)


@pytest.mark.parametrize(
    ("tokens", "blocks", "threads"), [(1, 1, 32), (4, 1, 128), (8, 1, 256), (100, 13, 256)]
)
def test_a_choice_without_a_sort_has_a_warp_for_each_token(tokens, blocks, threads):
    launch = launch_choice(tokens)

    assert launch.grid == (blocks, 1, 1)
    assert launch.block == (threads, 1, 1)


def test_a_sort_of_no_tokens_says_that_no_expert_has_one():
    assert launch_route(RouteShape(0, 128, 8), 1).launch.grid == (1, 1, 1)


def test_no_token_is_no_launch():
    assert launch_choice(0) is None
    assert launch_gemv(0, 768, up_tile(2048)) is None


@pytest.mark.parametrize("channels", [8, 64, 768, 1408, 2048, 2880, 4096, 7168, 14_336])
@pytest.mark.parametrize("top_k", [1, 2, 6, 8])
def test_warps_of_a_block_divide_the_grain_of_columns(channels, top_k):
    for tile in (up_tile(channels), down_tile(channels, top_k)):
        assert 8 % (tile.columns * tile.warps) == 0
        assert tile.loads >= 1


@pytest.mark.parametrize(
    ("experts", "top_k", "most"), [(128, 8, 8), (512, 10, 8), (64, 6, 5), (8, 2, 4), (32, 4, 4)]
)
def test_few_tokens_are_not_sorted(experts, top_k, most):
    few = [n for n in range(1, 100) if takes_gemv(MoeShape(n, top_k, 2048, 768), experts)]

    assert few == list(range(1, most + 1))


def test_a_warp_of_the_grid_has_columns_of_a_row():
    assert launch_gemv(16, 768, Tile(1, 8, 4, 4)).grid == (16 * 768 // 4, 1, 1)


@pytest.mark.parametrize(("channels", "threads"), [(8, 64), (2048, 256), (4096, 512), (7168, 512)])
def test_a_thread_sums_one_load_of_a_row_or_several(channels, threads):
    assert combine_threads(channels) == threads
