"""Tiles and grids of expert layers by size: tables."""

import pytest
from spaninfer_kernel_launch import ShapeError
from spaninfer_kernels_cuda.moe.tuning import (
    MoeShape,
    RouteShape,
    Tile,
    check_route,
    check_shape,
    combine_threads,
    down_tile,
    experts_per_lane,
    launch_gemv,
    launch_route,
    launch_sort,
    routers,
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
    ("tokens", "blocks", "warps", "sorts"),
    [(1, 1, 32, 0), (32, 1, 32, 0), (33, 5, 8, 0), (1024, 128, 8, 0), (1025, 33, 32, 5)],
)
def test_one_launch_sorts_up_to_1024_tokens(tokens, blocks, warps, sorts):
    shape = RouteShape(tokens, 128, 8)

    sort = launch_sort(shape)

    assert launch_route(shape, sorts=True).grid == (blocks, 1, 1)
    assert routers(shape) == warps
    assert (sort.grid[0] if sort else 0) == sorts


@pytest.mark.parametrize(("tokens", "threads"), [(1, 32), (4, 128), (100, 256)])
def test_without_a_sort_there_are_no_threads_but_routers(tokens, threads):
    assert launch_route(RouteShape(tokens, 128, 8), sorts=False).block == (threads, 1, 1)


def test_a_sort_of_no_tokens_says_that_no_expert_has_one():
    assert launch_route(RouteShape(0, 128, 8), sorts=True).grid == (1, 1, 1)


def test_no_token_is_no_launch():
    assert launch_route(RouteShape(0, 128, 8), sorts=False) is None
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
