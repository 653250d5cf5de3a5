"""Tiles and split-K of GEMM shapes: tables."""

from itertools import product

import pytest
from spaninfer_kernel_launch import ARCHITECTURES, ShapeError
from spaninfer_kernels_cuda.gemm.tall import Tall, choose_tall, divides_evenly, launch_tall
from spaninfer_kernels_cuda.gemm.tiles import every_tile
from spaninfer_kernels_cuda.gemm.tuning import (
    CHUNK,
    Shape,
    Tile,
    check,
    choose,
    is_faster,
    launch,
)
from spaninfer_kernels_cuda.gemm.wide import Wide, band_of, choose_many, every_many, launch_wide

SHARED = {
    "sm_75": 65_536,
    "sm_80": 166_912,
    "sm_90a": 232_448,
    "sm_100a": 232_448,
    "sm_120": 101_376,
}
SHAPES = [(4608, 3584), (3584, 18_944), (152_064, 3584), (896, 896), (9728, 896), (1, 8)]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("rows", [0, 1, 8, 9, 31, 64])
def test_every_shape_has_a_tile_that_its_gpu_can_hold(arch, rows):
    for outputs, inner in SHAPES:
        tile = choose(Shape(rows, outputs, inner), arch, SHARED[arch], gated=False)

        assert tile.shared_bytes <= SHARED[arch]
        assert tile.stages >= 2
        assert tile.rows <= 256
        assert tile.hopper == (arch == "sm_90a")
        assert rows <= tile.tokens <= 64
        assert tile.tokens in ((8, 16, 32, 48, 64) if tile.hopper else (8, 16, 32, 64))


def test_every_tile_that_a_shape_may_get_is_among_those_that_are_compiled():
    every = list(every_tile())
    known = set(every)
    rows = (*range(1, 65, 5), *range(64, 513, 16))
    outputs = (1, 16, 64, 512, 1160, 2560, 4608, 6144, 8448, 9728, 12_800, 13_004, 37_888, 152_064)
    inners = (72, 896, 3584, 4864, 18_944)

    for arch, sizes in product(SHARED, product(rows, outputs, inners)):
        shape = Shape(*sizes)
        for gated in (False, True)[: 2 - shape.outputs % 2]:
            assert choose(shape, arch, SHARED[arch], gated=gated) in known, (arch, shape, gated)

    assert len(known) == len(every)


@pytest.mark.parametrize("rows", [513, 5476, 43_808])
@pytest.mark.parametrize("outputs", [1280, 3840, 6848])
def test_any_number_of_rows_has_a_tile_on_hopper_that_fills_the_last_round_best(rows, outputs):
    tile = choose(Shape(rows, outputs, 1280), "sm_90a", SHARED["sm_90a"], gated=True)

    def computed(one):
        units = -(-rows // one.tokens) * -(-outputs // one.rows)
        return -(-units // 132) * one.tokens * one.rows

    assert tile == choose_many(rows, outputs, SHARED["sm_90a"])
    assert computed(tile) == min(map(computed, every_many(SHARED["sm_90a"])))
    assert tile in every_tile()


@pytest.mark.parametrize(
    ("arch", "outputs", "gated"),
    [("sm_90a", 1284, False), ("sm_90a", 1288, True), ("sm_80", 1280, False)],
)
def test_more_than_512_rows_are_refused_where_no_tile_takes_them(arch, outputs, gated):
    with pytest.raises(ShapeError, match="x has 513 rows; at most 512, or any number on Hopper"):
        choose(Shape(513, outputs, 64), arch, SHARED[arch], gated=gated)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("rows", [65, 128, 129, 200, 256, 257, 384, 449, 512])
def test_many_rows_have_a_tile_of_their_own_on_hopper(rows, gated):
    for outputs, inner in SHAPES[:-1]:
        tile = choose(Shape(rows, outputs, inner), "sm_90a", SHARED["sm_90a"], gated=gated)

        assert isinstance(tile, Wide)
        assert tile.shared_bytes <= SHARED["sm_90a"]
        assert tile.stages >= 4
        assert tile.splits <= -(-inner // CHUNK)
        assert -(-rows // tile.tokens) * tile.tokens < rows + 128


@pytest.mark.parametrize(
    ("rows", "tile"),
    [(385, Tall(208, 4)), (416, Tall(208, 4)), (417, Tall(224, 4)), (448, Tall(224, 4))],
)
def test_some_hundred_rows_are_divided_evenly_where_that_keeps_sms_busy(rows, tile):
    gates = choose(Shape(rows, 37_888, 3584), "sm_90a", SHARED["sm_90a"], gated=True)
    plain = choose(Shape(rows, 37_888, 3584), "sm_90a", SHARED["sm_90a"], gated=False)
    fewer = choose(Shape(rows, 28_672, 4096), "sm_90a", SHARED["sm_90a"], gated=True)

    assert gates == tile
    assert isinstance(plain, Wide)
    assert isinstance(fewer, Wide)


@pytest.mark.parametrize("rows", [129, 144, 256, 257, 320, 416, 448, 512, 700, 3072])
def test_tiles_that_divide_rows_hold_all_of_them_and_fit(rows):
    tile = choose_tall(rows, SHARED["sm_90a"])

    across = -(-rows // tile.tokens)
    assert across == -(-rows // 256)
    assert tile.tokens * across - rows < 33 * across
    assert tile.stages >= 4
    assert tile.shared_bytes <= SHARED["sm_90a"]


@pytest.mark.parametrize(
    ("rows", "outputs", "evenly"),
    [(416, 37_888, True), (416, 28_672, False), (416, 9728, False), (200, 37_888, False)],
)
def test_tiles_are_as_many_as_sms_or_a_multiple(rows, outputs, evenly):
    tile = Tall(208, 4)

    grid = launch_tall(rows, outputs, tile, 132)

    assert divides_evenly(rows, outputs, tile) == evenly
    assert grid.grid == (min(-(-outputs // 192) * -(-rows // 208), 132), 1, 1)
    assert grid.block == (384, 1, 1)
    assert grid.overlaps


def test_many_rows_before_hopper_or_with_odd_outputs_have_the_tile_of_few():
    shapes = [("sm_80", 4608), ("sm_90a", 4612)]

    tiles = [choose(Shape(300, outputs, 64), arch, 99_000, gated=False) for arch, outputs in shapes]

    assert [(tile.hopper, tile.tokens) for tile in tiles] == [(False, 64), (True, 128)]


@pytest.mark.parametrize(
    ("rows", "outputs", "inner", "tile"),
    [
        (65, 37_888, 3584, Wide(2, 1, 144, 6)),
        (128, 3584, 18_944, Wide(2, 1, 128, 7, splits=4)),
        (192, 37_888, 3584, Wide(3, 1, 144, 5)),
        (256, 37_888, 3584, Wide(2, 2, 144, 4)),
        (384, 37_888, 3584, Wide(3, 1, 144, 5)),
        (512, 3584, 18_944, Wide(2, 2, 112, 4, splits=2)),
        (128, 9728, 896, Wide(2, 1, 96, 8)),
        (128, 896, 4864, Wide(2, 1, 64, 9, splits=4)),
    ],
)
def test_tiles_of_many_rows_divide_the_weight_evenly_among_sms(rows, outputs, inner, tile):
    assert choose(Shape(rows, outputs, inner), "sm_90a", SHARED["sm_90a"], gated=False) == tile


@pytest.mark.parametrize(
    ("tile", "rows", "blocks"),
    [
        (Wide(2, 2, 144, 4), 256, 132),  # 264 tiles: two for each
        (Wide(2, 2, 144, 4), 512, 132),
        (Wide(2, 1, 144, 6), 129, 132),
        (Wide(3, 1, 112, 5, splits=4), 130, 4 * 339),
    ],
)
def test_blocks_that_share_all_tiles_are_one_per_sm_and_clusters_one_per_tile(tile, rows, blocks):
    grid = launch_wide(rows, 37_888, tile, 132)

    assert grid.grid == (blocks, 1, 1)
    assert grid.cluster == (tile.splits, 1, 1)
    assert grid.overlaps


def test_a_band_is_as_many_rows_of_x_as_stay_in_the_cache():
    tile, many = Wide(2, 1, 128, 4), Wide(2, 1, 256, 4, many=True)

    assert band_of(256, 2 * 3584, tile) == 2  # all there are
    assert band_of(8192, 18_944, tile) * 128 * 18_944 <= 20 << 20
    assert band_of(8192, 1 << 20, tile) == 1
    assert band_of(8192, 2 * 3584, many) == 1  # it is the weight that stays


@pytest.mark.parametrize(("outputs", "inner"), SHAPES)
@pytest.mark.parametrize("rows", [1, 17, 64])
def test_no_block_is_without_work_and_groups_hold_all_tokens(rows, outputs, inner):
    tile = choose(Shape(rows, outputs, inner), "sm_90a", SHARED["sm_90a"], gated=False)

    grid = launch(Shape(rows, outputs, inner), tile, 132)

    blocks, groups, _ = grid.grid
    tiles, chunks = -(-outputs // tile.rows), -(-inner // CHUNK)
    assert 1 <= blocks <= tiles * chunks
    assert blocks == tiles * tile.splits if tile.splits > 1 else blocks * groups <= 132
    assert (groups - 1) * tile.tokens < rows <= groups * tile.tokens
    assert grid.cluster == (tile.splits, 1, 1)
    assert grid.overlaps


def test_pairs_of_rows_that_end_inside_of_a_box_go_to_the_general_kernel():
    assert choose(Shape(1, 1024, 64), "sm_90a", SHARED["sm_90a"], gated=True).hopper
    assert choose(Shape(1, 1026, 64), "sm_90a", SHARED["sm_90a"], gated=False).hopper
    assert not choose(Shape(1, 1026, 64), "sm_90a", SHARED["sm_90a"], gated=True).hopper


@pytest.mark.parametrize(
    ("rows", "outputs", "inner", "tile"),
    [
        (1, 4608, 3584, Tile(8, 1, 11, hopper=True, splits=3)),
        (16, 3584, 3584, Tile(16, 1, 10, hopper=True, splits=4)),
        (33, 3584, 3584, Tile(48, 1, 6, hopper=True, splits=4)),
        (64, 3584, 18_944, Tile(64, 1, 5, hopper=True, splits=4)),
        (64, 5120, 2048, Tile(64, 1, 5, hopper=True, splits=2)),
        (1, 2048, 4096, Tile(8, 1, 10, hopper=True, splits=6)),
        (1, 1728, 4096, Tile(8, 1, 10, hopper=True, splits=8)),
        (8, 9728, 896, Tile(8, 2, 5, hopper=True, splits=2)),
        (32, 37_888, 3584, Tile(32, 3, 5, hopper=True)),
        (64, 152_064, 3584, Tile(64, 2, 9, hopper=True)),
    ],
)
def test_few_tiles_are_split_among_clusters_and_many_shared_by_all(rows, outputs, inner, tile):
    assert choose(Shape(rows, outputs, inner), "sm_90a", SHARED["sm_90a"], gated=False) == tile


@pytest.mark.parametrize(
    ("tokens", "groups", "splits", "columns"),
    [(8, 1, 4, 1), (8, 2, 8, 1), (64, 1, 3, 3), (64, 2, 4, 2), (128, 1, 8, 2)],
)
def test_blocks_of_a_cluster_have_room_for_everybodys_sums_of_their_columns(
    tokens, groups, splits, columns
):
    tile = Tile(tokens, groups, 2, hopper=True, splits=splits)

    assert tile.split_k_bytes == columns * splits * (128 * groups) * 16 + 16
    assert tile.shared_bytes == 2 * tile.stage_bytes + tile.split_k_bytes


def test_blocks_that_share_all_tiles_do_not_meet():
    assert Tile(64, 3, 3, hopper=True).split_k_bytes == 0


@pytest.mark.parametrize(
    ("rows", "outputs", "inner", "gated", "faster"),
    [
        (64, 3584, 3584, False, True),
        (65, 3584, 3584, False, False),
        (65, 37_888, 3584, True, True),
        (192, 37_888, 3584, True, True),
        (208, 37_888, 3584, True, False),
        (224, 37_888, 3584, True, True),
        (257, 37_888, 3584, True, False),
        (351, 37_888, 3584, True, False),
        (352, 37_888, 3584, True, True),
        (384, 37_888, 3584, True, True),
        (385, 37_888, 3584, True, True),
        (448, 37_888, 3584, True, True),
        (449, 37_888, 3584, True, False),
        (416, 28_672, 4096, True, False),
        (416, 37_888, 3584, False, False),
        (512, 37_888, 3584, True, True),
        (768, 37_888, 3584, True, False),
        (192, 3584, 18_944, False, True),
        (193, 3584, 18_944, False, False),
        (128, 152_064, 3584, False, False),
        (128, 3588, 18_944, False, False),
        (64, 3584, 3588, False, True),
        (128, 37_896, 3584, True, False),
    ],
)
def test_beyond_64_rows_gates_and_long_sums_are_faster_than_cublas(
    rows, outputs, inner, gated, faster
):
    assert is_faster(Shape(rows, outputs, inner), "sm_90a", gated=gated) == faster


def test_before_hopper_cublas_is_faster():
    assert not is_faster(Shape(1, 3584, 3584), "sm_80", gated=False)


def test_no_rows_are_no_launch():
    assert launch(Shape(0, 64, 64), Tile(8, 2, 6, hopper=True), 132) is None
    assert launch_wide(0, 64, Wide(2, 1, 64, 9), 132) is None
    assert launch_tall(0, 64, Tall(208, 4), 132) is None


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (Shape(2**20, 2048, 64), "x has 1048576 rows and the weight 2048; the results are to be"),
        (Shape(1, 15, 64), "the weight has 15 rows; as many for the gate as for up"),
        (Shape(1, 0, 64), "the weight has 0 rows; at least 1, at most 4194303"),
        (Shape(1, 2**22, 64), "the weight has 4194304 rows; at least 1"),
        (Shape(1, 64, 60), "rows have 60 elements; a multiple of 8, at least 8"),
        (Shape(1, 64, 0), "rows have 0 elements"),
    ],
)
def test_shapes_that_no_kernel_takes_are_refused(shape, message):
    with pytest.raises(ShapeError, match=message):
        check(shape, gated=True)
