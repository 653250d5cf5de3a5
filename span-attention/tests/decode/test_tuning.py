"""Split and workspace of decodes, by size."""

from dataclasses import replace

import pytest
from span_attention import Format, SpanLayout
from span_attention.decode import tuning
from spaninfer_kernel_launch import ShapeError


def layout(format=Format.BFLOAT16, key_size=128, value_size=128, kv_heads=4, **other):
    sizes = dict(span_len=32, key_size=key_size, value_size=value_size, num_layers=1)
    return SpanLayout.contiguous(**sizes, kv_heads=kv_heads, format=format, **other)


@pytest.mark.parametrize(
    ("heads", "value_size", "tiles", "items"),
    [
        *((28, 128, 1, 4), (32, 128, 1, 4), (36, 128, 2, 4), (64, 128, 2, 4)),
        *((160, 128, 2, 12), (64, 256, 1, 8)),
    ],
)
def test_query_heads_of_a_key_head_are_computed_together(heads, value_size, tiles, items):
    sizes = layout(value_size=value_size)

    chosen = tuning.tune(sizes, heads, requests=64)

    assert chosen.head_tiles == tiles
    assert tuning.items(sizes, heads, chosen) == items


@pytest.mark.parametrize("format", [Format.BFLOAT16, Format.FP8, Format.INT8, Format.UINT4])
@pytest.mark.parametrize("size", [64, 96, 128, 192, 256])
def test_work_is_divided_in_tiles(format, size):
    chosen = tuning.tune(layout(format, size, size), heads=8, requests=64)

    assert chosen.tile_tokens == chosen.tiles * tuning.MMA_TOKENS


@pytest.mark.parametrize(
    ("heads", "key_size", "value_size", "warps"),
    [(28, 128, 128, 6), (36, 128, 128, 2), (8, 256, 256, 2), (36, 192, 128, 2), (4, 576, 512, 2)],
)
def test_blocks_that_share_more_memory_have_fewer_warps(heads, key_size, value_size, warps):
    chosen = tuning.tune(layout(key_size=key_size, value_size=value_size), heads, requests=64)

    assert chosen.warps == warps


@pytest.mark.parametrize(
    ("format", "key_size", "parts"),
    [
        *((Format.BFLOAT16, 128, 1), (Format.BFLOAT16, 256, 2)),
        *((Format.FP8, 256, 1), (Format.INT8, 128, 1)),
    ],
)
def test_large_keys_are_loaded_in_parts(format, key_size, parts):
    assert tuning.tune(layout(format, key_size, 64), heads=4, requests=64).key_parts == parts


def test_values_too_wide_for_the_registers_are_computed_in_parts():
    sizes = layout(key_size=576, value_size=512, kv_heads=1, values_in_keys=True)

    chosen = tuning.tune(sizes, heads=16, requests=64)

    assert chosen.value_tile == 256
    assert tuning.items(sizes, 16, chosen) == 4


@pytest.mark.parametrize(
    ("format", "size", "tiles", "warps_per_sm"),
    [
        *((Format.BFLOAT16, 128, 1, 12), (Format.BFLOAT16, 256, 1, 8)),
        *((Format.INT8, 256, 1, 8), (Format.UINT4, 128, 4, 8)),
        *((Format.FP8, 128, 3, 8), (Format.FP8, 96, 3, 8), (Format.INT8, 128, 3, 8)),
    ],
)
def test_as_many_bytes_are_under_way_as_keep_memory_busy(format, size, tiles, warps_per_sm):
    chosen = tuning.tune(layout(format, size, size), heads=4, requests=64)

    assert (chosen.tiles, chosen.warps * chosen.blocks_per_sm) == (tiles, warps_per_sm)


@pytest.mark.parametrize(
    ("format", "size", "tiles"),
    [(Format.BFLOAT16, 128, 2), (Format.FLOAT16, 64, 2), (Format.BFLOAT16, 256, 1)],
)
def test_few_requests_have_larger_tiles(format, size, tiles):
    chosen = tuning.tune(layout(format, size, size), heads=4, requests=16)

    assert (chosen.tiles, chosen.warps * chosen.blocks_per_sm) == (tiles, 8)


def test_sizes_that_are_no_whole_mmas_are_named():
    with pytest.raises(
        ShapeError, match="key_size is 72; decode takes multiples of 16 of bfloat16"
    ):
        tuning.check(layout(key_size=72), heads=4)


def test_spans_of_four_gigabytes_are_refused():
    wide = replace(layout(), span_stride=2**32)

    with pytest.raises(ShapeError, match="4294967296 bytes from span to span; decode takes less"):
        tuning.check(wide, heads=4)


def test_memory_grows_with_blocks_and_requests():
    sizes = layout()
    chosen = tuning.tune(sizes, heads=28, requests=64)

    parts = 264 + 264 // 17 + 1  # of each block, and of each end of an item in more than 17
    assert tuning.plan_bytes(3, chosen, blocks=264) == (1585 + 264) * 16 + 4 * (4 + parts)
    assert tuning.workspace_bytes(sizes, chosen, blocks=264) == parts * 4 * 8 * (128 + 16)
