"""GEMMs with quantised weights against their definition; those that need no GPU come first."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest
from spaninfer_kernel_launch import DeviceError, DTypeError, ShapeError, get_gpu, new_stream
from spaninfer_kernels_cuda import quantized_gemm
from spaninfer_kernels_cuda.gemm.tuning import FLAGS, Shape
from spaninfer_kernels_cuda.quantized_gemm import QuantizedFormat, Tile, pack, row_order
from spaninfer_kernels_cuda.quantized_gemm.tiles import fill
from spaninfer_kernels_cuda.quantized_gemm.tuning import choose, launch
from spaninfer_op_reference import E2M1, gated

FORMATS = [
    *(QuantizedFormat(4, group) for group in (16, 32, 64, 128, None)),
    *(QuantizedFormat(8, group) for group in (32, 128, None)),
    *(QuantizedFormat(bits, 64, shift) for bits in (4, 8) for shift in ("zero", "minimum")),
    *(QuantizedFormat(4, group, values="e2m1") for group in (16, 32)),
    *(QuantizedFormat(4, group, activations="e4m3") for group in (32, 64, 128)),
]
CODED = QuantizedFormat(4, 128, activations="e4m3")
E4M3 = ml_dtypes.float8_e4m3fn
SHARED_BYTES = 232_448  # of a block on Hopper


def ids(format):
    x = "" if format.activations == "floats" else f", x in {format.activations}"
    return f"{format.bits} bits of {format.group}, {format.shift}, {format.values}{x}"


class Drawn:
    """A random weight: its parts, packed, and the numbers that it stands for, in float64."""

    def __init__(self, format, outputs, inner, *, gated=False, seed=0):
        draw = np.random.default_rng(seed)
        self.codes = draw.integers(0, 1 << format.bits, (outputs, inner)).astype(np.uint8)
        self.factors = draw.uniform(0.5, 1.5, outputs).astype(np.float32) / 2**format.bits
        groups = 0 if format.group is None else -(-inner // format.group)
        self.scales = draw.uniform(0.5, 1.5, (outputs, groups)).astype(np.float16)
        self.shifts = {
            "none": None,
            "zero": draw.integers(0, 1 << format.bits, (outputs, groups)).astype(np.uint16),
            "minimum": draw.uniform(0, 1 << format.bits, (outputs, groups)).astype(np.float16),
        }[format.shift]
        self.packed = pack(
            *(self.codes, format),
            scales=self.scales,
            shifts=self.shifts,
            factors=self.factors,
            gated=gated,
        )
        self.numbers = self._numbers(format)

    def _numbers(self, format):
        def spread(numbers):
            return np.repeat(numbers.astype(np.float64), format.group, 1)[:, : self.codes.shape[1]]

        numbers = self.codes.astype(np.float64)
        if format.values == "e2m1":
            numbers = np.array(E2M1)[self.codes]
        elif format.shift == "none":
            numbers -= 1 << (format.bits - 1)
        if format.shift == "zero":
            numbers -= spread(self.shifts)
        if format.group is not None:
            numbers *= spread(self.scales)
        if format.shift == "minimum":
            numbers -= spread(self.shifts)
        return numbers * self.factors[:, None]

    def on(self, on_gpu):
        """The packed weight on the GPU."""
        kept = self.packed
        return quantized_gemm.PackedWeight(
            *(on_gpu.put(kept.records), on_gpu.put(kept.factors)),
            *(kept.format, kept.outputs, kept.inner, kept.gated),
        )


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_lane_finds_its_fragments_where_the_kernel_reads_them(bits, gated):
    """Fragments as csrc/mma.cuh of kernel-launch draws them, loads as codes.cuh does."""
    format, outputs, inner = QuantizedFormat(bits, 32, "zero"), 152, 300
    weight = Drawn(format, outputs, inner, gated=gated)
    order, steps = row_order(outputs, gated=gated), 4 if bits == 4 else 2
    draw = np.random.default_rng(1)
    blocks, chunks, _ = weight.packed.records.shape
    for _ in range(500):
        block, chunk = draw.integers(blocks), draw.integers(chunks)
        warp, lane, step = draw.integers(4), draw.integers(32), draw.integers(8)
        register, second = draw.integers(4), draw.integers(2)
        record = weight.packed.records[block, chunk]
        load = ((warp * 8 // steps + step // steps) * 32 + lane) * 16
        if bits == 4:
            [word] = record[load + step % steps * 4 :][:4].view("<u4")
            found = word >> (4 * register + 16 * second) & 15
        else:
            found = record[load + step % steps * 8 + 2 * register + second]
        row = order[block * 64 + warp * 16 + lane // 4 + register % 2 * 8]
        column = chunk * 128 + step * 16 + lane % 4 * 2 + second + register // 2 * 8
        is_there = row >= 0 and column < inner
        assert found == (weight.codes[row, column] if is_there else 0)


def test_a_lane_finds_its_fragments_of_e4m3_where_the_kernel_reads_them():
    """Of 32 columns, as csrc/mma.cuh draws fragments of codes; the kernel makes e4m3 as here."""
    weight = Drawn(CODED, 152, 304)
    order, draw = row_order(152, gated=False), np.random.default_rng(1)
    blocks, chunks, _ = weight.packed.records.shape
    for _ in range(500):
        block, chunk = draw.integers(blocks), draw.integers(chunks)
        warp, lane, step = draw.integers(4), draw.integers(32), draw.integers(4)
        register, byte = draw.integers(4), draw.integers(4)
        record = weight.packed.records[block, chunk]
        load = ((warp * 2 + step // 2) * 32 + lane) * 16
        [word] = record[load + step % 2 * 8 + register // 2 * 4 :][:4].view("<u4")
        if register % 2:
            word = word >> 4 | word << 28
        bits = (word & 0x87878787) + ((word & 0x80808080) >> 7)
        found = (bits >> 8 * byte & 255).astype(np.uint8).view(E4M3).astype(np.float64) * 2**9
        row = order[block * 64 + warp * 16 + lane // 4 + register % 2 * 8]
        column = chunk * 128 + step * 32 + lane % 4 * 4 + byte + register // 2 * 16
        is_there = row >= 0 and column < 304
        assert found == (weight.codes[row, column] if is_there else 0) - 8.0


def test_scales_and_shifts_follow_the_codes_of_a_record():
    format = QuantizedFormat(4, 32, "zero")
    weight = Drawn(format, 70, 300)

    numbers = weight.packed.records[..., format.code_bytes :].reshape(2, 3, 2, 4, 64, 2)
    scales = numbers[:, :, 0].copy().view(np.float16)[..., 0]  # block, chunk, group, row
    zeros = numbers[:, :, 1].copy().view(np.uint16)[..., 0]

    for found, given in ((scales, weight.scales), (zeros, weight.shifts)):
        rows = found.transpose(0, 3, 1, 2).reshape(128, 12)
        np.testing.assert_array_equal(rows[:70, :10], given)
        assert not rows[70:].any()
        assert not rows[:, 10:].any()


def test_gates_lie_by_eights_above_their_up_rows():
    order = row_order(24, gated=True)

    assert order[:32].tolist() == [*range(8), *range(12, 20), 8, 9, 10, 11, *[-1] * 4,
                                   20, 21, 22, 23, *[-1] * 4]  # fmt: skip


def test_formats_without_a_kernel_are_refused():
    with pytest.raises(ShapeError, match="codes of 3 bits; allowed are 4 and 8"):
        QuantizedFormat(3, 128)
    with pytest.raises(ShapeError, match="groups of 48 columns"):
        QuantizedFormat(4, 48)
    with pytest.raises(ShapeError, match="a whole row cannot share a zero"):
        QuantizedFormat(4, None, "zero")
    for other in ((8, 128), (4, 16), (4, None), (4, 128, "zero"), (4, 32, "none", "e2m1")):
        with pytest.raises(ShapeError, match=r"activations in e4m3 and .* integers of 4 bits"):
            QuantizedFormat(*other, activations="e4m3")


def test_arguments_that_do_not_fit_are_named():
    packed = Drawn(QuantizedFormat(4, 128), 64, 256).packed
    x = np.zeros((3, 256), np.float16)

    with pytest.raises(ShapeError, match="x: axis 1 is 128, but the kernel needs 256"):
        quantized_gemm.multiply(x[:, :128].copy(), packed)
    with pytest.raises(ShapeError, match="packed with gated=False, and gate is 'silu'"):
        quantized_gemm.multiply(x, packed, gate="silu")
    with pytest.raises(DeviceError, match="x lies in cpu memory"):
        quantized_gemm.multiply(x, packed)
    coded = Drawn(CODED, 64, 256).packed
    with pytest.raises(ShapeError, match="x in e4m3, which has x_scales; none were given"):
        quantized_gemm.multiply(x.astype(E4M3), coded)
    with pytest.raises(DTypeError, match="x holds float16, but the kernel needs float8_e4m3fn"):
        quantized_gemm.multiply(x, coded, x_scales=np.ones(3, np.float32))
    with pytest.raises(DTypeError, match="the weight is packed for activations in e4m3"):
        quantized_gemm.code_macros(CODED, np.float16)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_120"])
@pytest.mark.parametrize("format", FORMATS, ids=ids)
def test_every_tile_fits_and_its_blocks_cover_the_weight(format, arch):
    room = {"sm_75": 65_536, "sm_80": 166_912, "sm_90a": SHARED_BYTES, "sm_120": 101_376}[arch]
    for rows in (1, 8, 9, 33, 64, 65, 200, 256, 300, 2048):
        for outputs, inner in ((8, 8), (512, 3584), (3584, 18_944), (37_888, 3584)):
            shape = Shape(rows, outputs, inner)

            tile = choose(shape, format, arch, room, gated=False)

            grid = launch(shape, tile, format, 132)
            assert tile.shared_bytes(format) <= room
            assert tile.stages >= 2
            assert tile.tokens * grid.grid[1] >= rows
            assert grid.grid[0] * grid.grid[1] <= FLAGS
            assert tile.hopper == (arch == "sm_90a")
            assert format.shift != "minimum" or not tile.fold


# ---- on a GPU ------------------------------------------------------------------------------------


def drawn_rows(draw, shape, format, dtype):
    """Rows of x, their scales in codes (else None), and the numbers that they are in float64."""
    numbers = draw.standard_normal(shape)
    if format.activations == "floats":
        x = numbers.astype(dtype)
        return x, None, x.astype(np.float64)
    x, scales = (40 * numbers).astype(E4M3), draw.uniform(0.01, 0.05, shape[0]).astype(np.float32)
    return x, scales, x.astype(np.float64) * scales[:, None]


def check(found, wide, numbers, *, bias=0.0, residual=0.0, act=None):
    """Assert that each result is within a 256th of the sizes of its terms."""
    exact, size = wide @ numbers.T + bias, np.abs(wide) @ np.abs(numbers).T + np.abs(bias)
    if act:
        (gate, up), (gate_size, up_size) = np.split(exact, 2, 1), np.split(size, 2, 1)
        exact = gated(gate, up, act)
        size = 1.2 * (gate_size * np.abs(up) + up_size * np.abs(gate)) + np.abs(exact)
    exact, size = exact + residual, size + np.abs(residual)
    assert (np.abs(found.astype(np.float64) - exact) <= 2.0**-8 * size).all()


def run(on_gpu, step, weight, x, *, dtype=ml_dtypes.bfloat16, **added):
    """The results of two launches of `step`, each written over NaN."""
    given = on_gpu.put(x)
    added = {name: on_gpu.put(array) for name, array in added.items() if array is not None}
    workspace = on_gpu.put(np.zeros(step.workspace_bytes, np.uint8))
    columns = weight.outputs // 2 if weight.gated else weight.outputs
    results = []
    with get_gpu().current(), new_stream() as stream:
        for _ in range(2):
            out = on_gpu.put(np.full((len(x), columns), np.nan, dtype))
            on_gpu.wait()
            step.launch(
                *(given, weight.records, weight.factors),
                **dict(out=out, workspace=workspace, stream=stream, **added),
            )
            on_gpu.wait()
            results.append(on_gpu.get(out))
    assert not on_gpu.get(workspace)[: 4 * FLAGS].any()
    return results


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["half", "bfloat16"])
@pytest.mark.parametrize("format", FORMATS, ids=ids)
def test_it_is_its_definition(on_gpu, format, dtype):
    weight = Drawn(format, 328, 912)
    draw, packed = np.random.default_rng(2), weight.on(on_gpu)
    bias = draw.standard_normal(328).astype(dtype)
    for rows in (1, 8, 13, 33, 64, 100, 200, 300):
        x, scales, wide = drawn_rows(draw, (rows, 912), format, dtype)
        residual = draw.standard_normal((rows, 328)).astype(dtype)

        y = quantized_gemm.multiply(
            *(on_gpu.put(x), packed),
            x_scales=None if scales is None else on_gpu.put(scales),
            **dict(bias=on_gpu.put(bias), residual=on_gpu.put(residual), dtype=dtype),
        )

        added = bias.astype(np.float64), residual.astype(np.float64)
        check(on_gpu.get(y), wide, weight.numbers, bias=added[0], residual=added[1])


@pytest.mark.gpu
@pytest.mark.parametrize("act", ["silu", "gelu"])
@pytest.mark.parametrize(
    "format", [QuantizedFormat(4, 128), QuantizedFormat(8, None), CODED], ids=ids
)
def test_gates_are_applied_to_the_upper_half_of_the_weight(on_gpu, format, act):
    weight = Drawn(format, 360, 512, gated=True)
    packed = weight.on(on_gpu)
    for rows in (1, 20, 70, 300):
        draw = np.random.default_rng(rows)
        x, scales, wide = drawn_rows(draw, (rows, 512), format, np.float16)
        if scales is None:
            x, wide = x * np.float16(0.125), wide / 8
        else:
            scales, wide = scales / 8, wide / 8

        y = quantized_gemm.multiply(
            *(on_gpu.put(x), packed),
            x_scales=None if scales is None else on_gpu.put(scales),
            **dict(gate=act, dtype=np.float16),
        )

        check(on_gpu.get(y), wide, weight.numbers, act=act)


TILES = [
    *(Tile(8, groups, 0, splits) for groups in (1, 2, 3) for splits in (1, 2, 8)),
    *(Tile(64, groups, 0, splits, True) for groups in (1, 2) for splits in (1, 3)),
    *(Tile(tokens, 2, 0, 1, True, False) for tokens in (16, 128, 160, 192, 256)),
    Tile(96, 2, 0, 1, True),
    *(Tile(tokens, 4, 0, splits, True, blocks=2) for tokens in (32, 64) for splits in (1, 7)),
    *(Tile(tokens, 4, 0, 1, True, False, blocks=2) for tokens in (96, 128)),
    *(Tile(tokens, groups, 3, hopper=False) for tokens in (8, 32) for groups in (1, 2)),
]
CODED_TILES = [
    *(
        Tile(tokens, groups, 0, splits, True)
        for tokens in (8, 16)
        for groups, splits in ((2, 4), (3, 5))
    ),
    *(Tile(tokens, 3, 0, 1, True) for tokens in (8, 16, 32, 64)),
    *(Tile(tokens, 2, 0, splits, True) for tokens in (32, 64, 96, 128) for splits in (1, 2, 3)),
    *(Tile(tokens, 2, 0, 1, True) for tokens in (160, 192, 256)),
    *(
        Tile(tokens, 4, 0, splits, True, blocks=2)
        for tokens in (8, 16, 32, 64)
        for splits in (1, 7)
    ),
    *(Tile(tokens, groups, 3, hopper=False) for tokens in (8, 32, 64) for groups in (1, 2)),
]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("format", "tile"),
    [
        *product((QuantizedFormat(4, 64, "zero"), QuantizedFormat(8, None)), TILES),
        *product((CODED,), CODED_TILES),
    ],
    ids=lambda each: str(each) if isinstance(each, Tile) else ids(each),
)
def test_every_kind_of_tile_gives_the_same_gemm_every_time(on_gpu, tile, format):
    gpu = get_gpu()
    if tile.hopper and gpu.arch != "sm_90a":
        pytest.skip("needs Hopper")
    weight, draw = Drawn(format, 1000, 1168), np.random.default_rng(3)
    packed = weight.on(on_gpu)
    tile = tile if tile.stages else fill(tile, format, SHARED_BYTES // (1 if tile.wgmma else 2))
    for rows in (tile.tokens - 1, 2 * tile.tokens + 3):
        x, scales, wide = drawn_rows(draw, (rows, 1168), format, ml_dtypes.bfloat16)
        shape = Shape(rows, 1000, 1168)
        step = quantized_gemm.prepare(shape, format, dtype=ml_dtypes.bfloat16, gpu=gpu, tile=tile)

        first, second = run(on_gpu, step, packed, x, x_scales=scales)

        check(first, wide, weight.numbers)
        assert (first == second).all()


@pytest.mark.gpu
@pytest.mark.parametrize("gate", [None, "silu"])
def test_with_the_invariant_tile_a_row_is_the_same_bits_alone_and_among_others(on_gpu, gate):
    gpu = get_gpu()
    weight, draw = Drawn(CODED, 1008, 3584, gated=gate is not None), np.random.default_rng(3)
    packed = weight.on(on_gpu)
    x, scales, _ = drawn_rows(draw, (300, 3584), CODED, np.float16)
    scales = scales / 16
    tile = quantized_gemm.invariant_tile(
        *(1008, CODED, gpu.arch, gpu.shared_bytes), gated=gate is not None
    )

    def multiplied(rows):
        step = quantized_gemm.prepare(
            Shape(rows, 1008, 3584), CODED, dtype=np.float16, gpu=gpu, gate=gate, tile=tile
        )
        return run(on_gpu, step, packed, x[:rows], dtype=np.float16, x_scales=scales[:rows])[0]

    among_others = multiplied(300)
    assert (multiplied(1)[0] == among_others[0]).all()
    assert (multiplied(129) == among_others[:129]).all()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("outputs", "gate"), [(400, None), (398, None), (400, "silu"), (416, "silu")]
)
@pytest.mark.parametrize(
    "tile",
    [
        *(Tile(64, 4, 0, splits, True, blocks=2) for splits in (1, 3)),
        Tile(128, 4, 0, 1, True, False, blocks=2),
        Tile(48, 3, 0, 1, True),
        Tile(256, 2, 0, 1, True, False),
    ],
    ids=str,
)
def test_results_are_written_where_they_belong_in_whole_vectors_and_out_of_them(
    on_gpu, tile, outputs, gate
):
    """416 / 2, 400 / 2 and 400 are whole vectors of 8 columns, 398 is not."""
    gpu = get_gpu()
    if gpu.arch != "sm_90a":
        pytest.skip("needs Hopper")
    format, draw = QuantizedFormat(4, 128), np.random.default_rng(5)
    weight = Drawn(format, outputs, 1024, gated=gate is not None)
    packed, tile = weight.on(on_gpu), fill(tile, format, SHARED_BYTES)
    bias = draw.standard_normal(outputs).astype(ml_dtypes.bfloat16)
    for rows in (3, tile.tokens, 2 * tile.tokens - 1):
        x = (draw.standard_normal((rows, 1024)) * 0.1).astype(ml_dtypes.bfloat16)
        shape = Shape(rows, outputs, 1024)
        step = quantized_gemm.prepare(shape, format, dtype=x.dtype, gpu=gpu, gate=gate, tile=tile)
        columns = outputs // 2 if gate else outputs
        residual = draw.standard_normal((rows, columns)).astype(ml_dtypes.bfloat16)

        first, second = run(on_gpu, step, packed, x, bias=bias, residual=residual)

        added = bias.astype(np.float64), residual.astype(np.float64)
        wide = x.astype(np.float64)
        check(first, wide, weight.numbers, bias=added[0], residual=added[1], act=gate)
        assert (first == second).all()


@pytest.mark.gpu
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("format", FORMATS, ids=ids)
def test_a_weight_is_packed_and_dequantised_on_the_device(on_gpu, format, gated):
    weight, gpu = Drawn(format, 136, 400, gated=gated), get_gpu()
    step = quantized_gemm.prepare_pack(136, 400, format, gpu=gpu, gated=gated)
    records = on_gpu.put(np.full(step.records_shape, 255, np.uint8))
    shifts = weight.codes if weight.shifts is None else weight.shifts  # which nothing reads
    shifts = shifts.view(np.uint8)
    given = [on_gpu.put(each) for each in (weight.codes, weight.scales, shifts)]
    with gpu.current(), new_stream() as stream:
        on_gpu.wait()
        step.launch(given[0], records=records, scales=given[1], shifts=given[2], stream=stream)
        on_gpu.wait()

    np.testing.assert_array_equal(on_gpu.get(records), weight.packed.records)
    if format.activations != "floats":
        return  # nothing dequantises these
    back = quantized_gemm.prepare_dequantize(
        *(136, 400, format), dtype=np.float16, gpu=gpu, gated=gated
    )
    out = on_gpu.put(np.full((136, 400), np.nan, np.float16))
    with gpu.current(), new_stream() as stream:
        on_gpu.wait()
        back.launch(records, on_gpu.put(weight.packed.factors), out=out, stream=stream)
        on_gpu.wait()
    size = np.abs(weight.numbers) if format.shift != "minimum" else np.abs(weight.numbers) + 1e-3
    assert (np.abs(on_gpu.get(out) - weight.numbers) <= 2.0**-10 * size).all()
