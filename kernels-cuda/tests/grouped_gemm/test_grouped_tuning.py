"""Tiles and grids of grouped GEMM."""

from dataclasses import replace

import numpy as np
import pytest
from spaninfer_kernel_launch import ShapeError
from spaninfer_kernels_cuda.grouped_gemm import TILES
from spaninfer_kernels_cuda.grouped_gemm.tuning import (
    General,
    Prompt,
    Shape,
    Stream,
    check,
    choose,
    launch,
)

SM_BYTES, BLOCK_BYTES = 228 * 1024, 227 * 1024  # of shared memory on Hopper
LAYERS = [(128, 8, 2048, 768), (64, 6, 2048, 1408), (8, 2, 4096, 14_336), (512, 10, 4096, 1024)]
TOKENS = [1, 2, 8, 33, 64, 200, 512, 4096, 16_384]


@pytest.mark.parametrize("tile_rows", [8, 64, 128])
def test_the_bound_of_tasks_holds_for_every_histogram_and_is_met_by_the_worst(tile_rows):
    draw = np.random.default_rng(0)
    shape = Shape(rows=300, chosen=1, experts=17, outputs=96, inner=64)
    worst = np.ones(17, int)
    worst[3] += 300 - 17

    def tasks(counts):
        return -(-counts // tile_rows).sum() * -(-96 // 64)

    drawn = [draw.multinomial(300, draw.dirichlet(np.full(17, 0.3))) for _ in range(200)]
    assert all(tasks(counts) <= shape.tasks(tile_rows, 64) for counts in drawn)
    assert tasks(worst) == shape.tasks(tile_rows, 64)


@pytest.mark.parametrize(("experts", "chosen", "hidden", "inner"), LAYERS)
@pytest.mark.parametrize("tokens", TOKENS)
def test_blocks_have_room_on_an_sm_of_hopper(tokens, experts, chosen, hidden, inner):
    for outputs, depth in ((2 * inner, hidden), (hidden, inner)):
        shape = Shape(tokens * chosen, chosen, experts, outputs, depth)
        tile = choose(shape, "sm_90a", BLOCK_BYTES)

        grid = launch(shape, tile, 132)

        assert grid.shared_bytes <= BLOCK_BYTES
        assert tile.blocks * (grid.shared_bytes + 1024) <= SM_BYTES
        assert tile.blocks * tile.threads <= 2048
        assert tile.stages >= 3


@pytest.mark.parametrize(("arch", "shared"), [("sm_75", 65_536), ("sm_120", 101_376)])
def test_blocks_have_room_on_small_gpus(arch, shared):
    shape = Shape(4096, 8, 512, 1024, 2048)

    tile = choose(shape, arch, shared)

    assert isinstance(tile, General)
    assert launch(shape, tile, 40).shared_bytes < shared


def test_blocks_are_as_many_as_run():
    few, many = Shape(512, 8, 128, 1536, 2048), Shape(65_536, 8, 128, 1536, 2048)

    streaming, prompt = (choose(shape, "sm_90a", BLOCK_BYTES) for shape in (few, many))

    assert launch(few, streaming, 132).grid == (132 * streaming.blocks, 1, 1)
    assert launch(many, prompt, 132).grid == (132, 1, 1)


def test_few_rows_stream_weights_and_prompts_multiply():
    def tile(tokens):
        return choose(Shape(tokens * 8, 8, 128, 1536, 2048), "sm_90a", BLOCK_BYTES)

    assert isinstance(tile(8), Stream)
    assert tile(8).tokens <= tile(64).tokens <= tile(512).tokens
    assert isinstance(tile(4096), Prompt)


@pytest.mark.parametrize("mean", [100.5, 128, 160])
@pytest.mark.parametrize(("experts", "outputs", "inner"), [(8, 28_672, 4096), (128, 1536, 2048)])
def test_a_tile_has_all_rows_of_experts_with_a_few_more_than_128(mean, experts, outputs, inner):
    shape = Shape(round(mean * experts), 2, experts, outputs, inner)

    assert choose(shape, "sm_90a", BLOCK_BYTES).tokens >= mean + 2 * mean**0.5


QWEN, LITE, MIXTRAL, _ = LAYERS
THIN, WIDE, BROAD = (8, 64, False), (16, 128, False), (64, 128, False)  # that stream weights
FEW, NARROW, TALL = (128, 256, False), (128, 128, False), (256, 192, False)
MANY, SWAPPED = FEW, (192, 256, True)


@pytest.mark.parametrize(
    ("layer", "tokens", "first", "second"),
    [
        (QWEN, 16, WIDE, WIDE),
        (QWEN, 64, BROAD, BROAD),
        (QWEN, 512, FEW, NARROW),
        (QWEN, 1024, FEW, NARROW),
        (QWEN, 2048, TALL, TALL),
        (QWEN, 4096, MANY, MANY),
        (QWEN, 8192, MANY, MANY),
        (QWEN, 16_384, MANY, MANY),
        (LITE, 8, THIN, THIN),
        (LITE, 64, BROAD, BROAD),
        (LITE, 512, FEW, NARROW),
        (LITE, 1024, NARROW, NARROW),
        (LITE, 4096, MANY, MANY),
        (LITE, 16_384, MANY, MANY),
        (MIXTRAL, 8, WIDE, WIDE),
        (MIXTRAL, 64, BROAD, BROAD),
        (MIXTRAL, 256, FEW, SWAPPED),
        (MIXTRAL, 512, SWAPPED, SWAPPED),
        (MIXTRAL, 1024, SWAPPED, SWAPPED),
        (MIXTRAL, 4096, SWAPPED, SWAPPED),
        (MIXTRAL, 16_384, SWAPPED, SWAPPED),
    ],
)
def test_tiles_are_those_that_were_quicker_on_an_h200(layer, tokens, first, second):
    """benchmarks/records/h200-moe-2026-11-29.jsonl; tiles as rows of x, of the weight, swapped."""
    experts, chosen, hidden, inner = layer
    rows = tokens * chosen

    of_up = choose(
        Shape(rows, chosen, experts, 2 * inner, hidden), "sm_90a", BLOCK_BYTES, gathers=True
    )
    of_down = choose(Shape(rows, chosen, experts, hidden, inner), "sm_90a", BLOCK_BYTES)

    assert (of_up.tokens, of_up.outputs, getattr(of_up, "swapped", False)) == first
    assert (of_down.tokens, of_down.outputs, getattr(of_down, "swapped", False)) == second


@pytest.mark.parametrize(("inner", "swapped"), [(4088, False), (4096, True)])
@pytest.mark.parametrize("mean", [65, 128, 160, 2048])
def test_tokens_are_the_second_operand_where_rows_of_the_weight_are_long(mean, inner, swapped):
    shape = Shape(mean * 16, 2, 16, 4096, inner)

    assert choose(shape, "sm_90a", BLOCK_BYTES, gathers=True).swapped == swapped


@pytest.mark.parametrize(("tokens", "gathers"), [(400, True), (1024, True), (1100, False)])
def test_few_rows_that_come_through_an_order_are_not_sorted(tokens, gathers):
    shape = Shape(tokens * 8, 8, 128, 1536, 2048)

    through_order = choose(shape, "sm_90a", BLOCK_BYTES, gathers=True)
    sorted_before = choose(shape, "sm_90a", BLOCK_BYTES)

    assert through_order.gathers == gathers
    assert not sorted_before.gathers


def test_what_is_chosen_is_compiled_ahead_and_nothing_else():
    shapes = [
        *(Shape(8 * tokens, 8, 128, 1536, 2048) for tokens in (*TOKENS, 32, 1100, 2048)),
        *(Shape(2 * tokens, 2, 8, 28_672, 4096) for tokens in TOKENS),
        Shape(1024, 8, 8, 1536, 2048),
    ]
    chosen = {
        choose(shape, *gpu, gathers=gathers)
        for shape in shapes
        for gpu in (("sm_90a", BLOCK_BYTES), ("sm_75", 65_536), ("sm_80", 166_912))
        for gathers in (False, True)
    }

    # Stages depend on the GPU, and take no registers.
    assert {replace(tile, stages=0) for tile in chosen} == {
        replace(tile, stages=0) for tile in TILES
    }


def test_no_rows_are_no_launch():
    shape = Shape(0, 8, 128, 1536, 2048)

    assert launch(shape, choose(shape, "sm_90a", BLOCK_BYTES), 132) is None


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (Shape(8, 1, 0, 64, 64), "0 experts; at least 1, at most 1024"),
        (Shape(8, 9, 8, 64, 64), "9 experts chosen of 8"),
        (Shape(8, 2, 8, 64, 64, shared=2), "2 experts are shared; .* fewer than the 2 chosen"),
        (Shape(8, 1, 8, 72, 64), "72 rows; a multiple of 16"),
        (Shape(8, 1, 8, 64, 12), "rows have 12 elements; a multiple of 8"),
        (Shape(2**28, 1, 8, 2**20, 64), "too many for one launch"),
    ],
)
def test_unsupported_sizes_are_named(shape, message):
    with pytest.raises(ShapeError, match=message):
        check(shape, gated=True)
