"""Packed weights against the definition of their quantisation."""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from spaninfer_kernels_cpu import (
    DTypeError,
    Format,
    FormatError,
    ShapeError,
    pack,
    pack_stack,
    unpack,
)
from spaninfer_kernels_cpu.quantisation import packed as module
from spaninfer_kernels_cpu.runtime.workers import share
from spaninfer_op_reference import (
    GRIDS,
    TABLES,
    CodeRange,
    dequantize_weight,
    grid_format,
    quantize_to_grid,
    quantize_to_table,
    quantize_weight,
    table_format,
)

CODE_FORMATS = [Format(kind, group) for kind in ("int8", "int4") for group in (None, 32, 64, 128)]
GROUPS = (None, 32, 64, 128)


@pytest.mark.parametrize("format", CODE_FORMATS, ids=str)
@pytest.mark.parametrize("size", [(1, 128), (64, 256), (130, 384)], ids=str)
def test_codes_are_as_near_as_the_definition_with_a_step_one_percent_wider(format, size):
    weight = np.random.default_rng(0).standard_normal(size, np.float32) + np.float32(0.3)
    codes = CodeRange.INT8 if format.kind == "int8" else CodeRange.UINT4
    truth = quantize_weight(weight.astype(np.float64), codes, format.group)

    error = np.abs(unpack(pack(weight, format)) - weight).reshape(truth.codes.shape)

    assert (error <= truth.scale * 0.505 + 1e-6).all()


@pytest.mark.parametrize("format", CODE_FORMATS, ids=str)
def test_groups_that_end_early_keep_their_numbers(format):
    weight = np.random.default_rng(1).uniform(-1, 1, (3, 77)).astype(np.float32)
    step = 2 / (255 if format.kind == "int8" else 15)

    result = unpack(pack(weight, format))

    assert result.shape == (3, 77)
    assert np.abs(result - weight).max() <= 0.505 * step


def defined(weight, kind, group):
    """The levels of a grid or of a table that are nearest to weight[O C]."""
    if kind in GRIDS:
        return dequantize_weight(quantize_to_grid(weight, grid_format(kind, group)))
    return dequantize_weight(quantize_to_table(weight, table_format(kind, group)))


@pytest.mark.parametrize("kind", [*GRIDS, *TABLES])
@pytest.mark.parametrize("group", GROUPS)
def test_levels_are_the_definitions_to_the_bit(kind, group):
    rng = np.random.default_rng(8)
    for size in ((1, 1), (3, 77), (67, 320), (65, 32)):
        weight = rng.standard_t(4, size).astype(np.float32)
        weight[-1] = weight[-1, 0]  # constant
        weight[0, : size[1] // 2] = 0

        result = unpack(pack(weight, Format(kind, group)))

        np.testing.assert_array_equal(result, defined(weight, kind, group))


@pytest.mark.parametrize("group", GROUPS)
def test_narrow_weights_have_181_levels_as_far_apart_as_their_ends_allow(group):
    weight = np.random.default_rng(11).standard_normal((70, 256), np.float32) + np.float32(0.3)
    grouped = weight.reshape(70, -1, group or 256)

    result = unpack(pack(weight, Format("w7a7", group))).reshape(grouped.shape)

    step = (grouped.max(-1, keepdims=True) - grouped.min(-1, keepdims=True)) / 180
    assert (np.abs(result - grouped) <= 0.505 * step + 1e-6).all()
    assert max(len(np.unique(each)) for each in result.reshape(-1, grouped.shape[-1])) <= 181


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("size", [(1, 1), (3, 77), (70, 256)], ids=str)
def test_wide_weights_have_steps_as_small_as_the_mean_of_a_group_allows(group, size):
    weight = np.random.default_rng(11).standard_t(4, size).astype(np.float32)
    weight[-1] = 0
    padded = np.zeros((size[0], -(-size[1] // group) * group), np.float32)
    padded[:, : size[1]] = np.abs(weight)
    groups = padded.reshape(size[0], -1, group)
    least = np.maximum(groups.max(2) / 32767, groups.mean(2) / 4094.49)

    result = unpack(pack(weight, Format("w13a13", group)))

    step = np.repeat(least * 1.01, group, 1)[:, : size[1]]  # scales are bfloat16
    assert (np.abs(result - weight) <= step / 2 + 1e-12).all()
    np.testing.assert_array_equal(result, -unpack(pack(-weight, Format("w13a13", group))))


def test_wide_weights_have_no_scale_per_row():
    with pytest.raises(FormatError, match=r"group is None for w13a13; .* w13a13 32, 64 or 128"):
        Format("w13a13")


@pytest.mark.parametrize("kind", [kind for kind in GRIDS if kind != "int8"])
@pytest.mark.parametrize("group", [None, 32, 128])
def test_errors_of_fewer_bits_are_no_larger_than_those_of_a_grid_from_end_to_end(kind, group):
    weight = np.random.default_rng(7).standard_normal((70, 256), np.float32)
    grouped = weight.reshape(70, -1, group or 256)
    least, most = grouped.min(-1, keepdims=True), grouped.max(-1, keepdims=True)
    levels, _ = GRIDS[kind]
    step = (most - least) / (levels - 1)
    plain = np.rint((grouped - least) / step) * step + least

    errors = unpack(pack(weight, Format(kind, group))) - weight

    squares = (errors**2).reshape(grouped.shape).sum(-1), ((plain - grouped) ** 2).sum(-1)
    assert squares[0].mean() <= squares[1].mean() * (1.02 if levels > 11 else 0.95)
    assert (squares[0] <= squares[1] * 1.5).all()


@pytest.mark.parametrize("format", CODE_FORMATS, ids=str)
@pytest.mark.parametrize("number", [0.0, 1.0, -0.37, 1e-30, 3e30])
def test_a_constant_weight_is_met_to_five_digits(format, number):
    weight = np.full((2, 64), number, np.float32)

    result = unpack(pack(weight, format))

    np.testing.assert_allclose(result, weight, rtol=2e-5)


@pytest.mark.parametrize("format", [f for f in CODE_FORMATS if f.group], ids=str)
def test_every_group_has_its_own_scale(format):
    sizes = np.repeat(10.0 ** np.arange(-4, 4), format.group).astype(np.float32)
    signs = np.where(np.random.default_rng(2).random(len(sizes)) < 0.5, -1, 1)
    weight = (sizes * signs)[None].astype(np.float32)

    result = unpack(pack(weight, format))

    np.testing.assert_allclose(result, weight, rtol=0.08 if format.kind == "int4" else 5e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_float32_keeps_every_source_as_it_is(dtype):
    weight = np.random.default_rng(3).standard_normal((70, 33)).astype(dtype)

    result = unpack(pack(weight, Format("float32")))

    np.testing.assert_array_equal(result, weight.astype(np.float32))


def test_bfloat16_rounds_to_the_nearest():
    weight = np.random.default_rng(4).standard_normal((70, 33)).astype(np.float32)

    result = unpack(pack(weight, Format("bfloat16")))

    np.testing.assert_array_equal(result, weight.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_codes_do_not_depend_on_the_type_of_the_source(dtype):
    weight = np.random.default_rng(5).standard_normal((70, 64)).astype(dtype)

    panels = [pack(w, Format("int8", 32)).panels for w in (weight, weight.astype(np.float32))]

    np.testing.assert_array_equal(*panels)


@pytest.mark.parametrize("format", [Format("bfloat16"), Format("int8", 32), Format("int4", 32)])
def test_packing_takes_little_more_memory_than_the_result(format):
    weight = np.zeros((40_000, 896), ml_dtypes.bfloat16)
    pack(weight[:1], format)  # compiles

    tracemalloc.start()
    panels = pack(weight, format).panels
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most <= 1.2 * panels.nbytes + 8 * 2**20


@pytest.mark.parametrize("format", [Format("float32"), Format("bfloat16"), Format("int4", 32)])
@pytest.mark.parametrize("sizes", [(7, 200, 33), (128, 64), (1, 1, 1), (300, 5)], ids=str)
def test_parts_below_one_another_are_packed_as_one_weight(format, sizes):
    """Rows of several parts in one panel, parts of several megabytes, and types that differ."""
    rng = np.random.default_rng(6)
    parts = [rng.standard_normal((2, size, 8192), np.float32) for size in sizes]
    parts[0] = parts[0].astype(ml_dtypes.bfloat16)

    packed = pack_stack(parts, format)

    for number in range(2):
        weight = np.concatenate([part[number].astype(np.float32) for part in parts])
        np.testing.assert_array_equal(packed[number].panels, pack(weight, format).panels)


@pytest.mark.parametrize("format", [Format("bfloat16"), Format("int8", 64)], ids=str)
def test_every_cpu_helps_and_makes_the_same_bits(format, monkeypatch):
    weight = np.random.default_rng(7).standard_normal((1000, 4096), np.float32)
    asked, results = [], []

    def noted(work, num_workers):
        asked.append(num_workers)
        share(work, num_workers)

    monkeypatch.setattr(module, "share", noted)
    for cpus in (1, 3, 100):
        monkeypatch.setattr(module, "usable_cpus", lambda cpus=cpus: cpus)
        results.append(pack(weight, format).panels)

    assert asked == [1, 3, 16]  # there are 16 panels
    for panels in results[1:]:
        np.testing.assert_array_equal(panels, results[0])


def test_parts_below_one_another_need_no_memory_beside_the_result():
    parts = [np.zeros((1, 10_000, 896), np.float32) for _ in range(4)]
    pack_stack([part[:, :1] for part in parts], Format("bfloat16"))

    tracemalloc.start()
    panels = pack_stack(parts, Format("bfloat16")).panels
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most <= panels.nbytes + 8 * 2**20


@pytest.mark.parametrize(
    ("format", "bits"),
    [
        (Format("int8"), 8),
        (Format("int8", 32), 9),
        (Format("int4", 32), 5),
        (Format("int3.5", 32), 4.5),
        (Format("int3.5", 64), 4),
        (Format("int3.5", 128), 3.75),
        (Format("int3", 32), 4),
        (Format("iq4_nl", 32), 4.5),
        (Format("iq4_nl", 128), 4.125),
    ],
)
def test_a_pack_has_the_size_of_its_codes_and_bfloat16_parameters(format, bits):
    packed = pack(np.ones((640, 4096), np.float32), format)

    assert packed.panels.nbytes <= 640 * 4096 * bits / 8 * 1.01


def test_weights_and_formats_that_cannot_be_packed_are_named():
    with pytest.raises(FormatError, match="format is 'int7'; choose one of float32"):
        Format("int7")
    with pytest.raises(FormatError, match="group is 48 for int8"):
        Format("int8", 48)
    with pytest.raises(FormatError, match="group is 32 for bfloat16"):
        Format("bfloat16", 32)
    with pytest.raises(DTypeError, match="weight holds int8"):
        pack(np.zeros((2, 2), np.int8), Format("int8"))
    with pytest.raises(ShapeError, match=r"weight: expected axes \(O C\)"):
        pack(np.zeros((2, 0), np.float32), Format("int8"))
    with pytest.raises(FormatError, match="not finite"):
        pack(np.full((2, 2), np.nan, np.float32), Format("int8"))
