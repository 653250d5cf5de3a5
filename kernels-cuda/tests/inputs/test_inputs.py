"""Inputs of steps against a slice-by-slice definition; tests without a GPU come first."""

import ctypes
from contextlib import contextmanager
from dataclasses import astuple, dataclass

import numpy as np
import pytest
from spaninfer_kernel_launch import captured, get_gpu, new_stream, pointer_of
from spaninfer_kernel_launch.driver import call_driver, driver
from spaninfer_kernels_cuda import inputs

POISON = -(10**9)
OUT_LOGITS = ("logit_indices", "logit_rows", "logit_seq_lens", "sampled_rows", "sampled_positions")
OUT = ("token_ids", "positions", *OUT_LOGITS)


def test_columns_share_the_memory_of_their_block():
    block = np.arange(inputs.columns_len(3) + 5, dtype=np.int32)

    columns = inputs.Columns.of(block, 3)

    assert [column.tolist() for column in astuple(columns)] == [
        *([0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14]),
        *([15, 16, 17, 18], [19, 20, 21, 22]),
    ]
    columns.sample_positions[1] = -7
    assert block[10] == -7


def test_a_block_that_is_too_short_is_refused():
    with pytest.raises(AssertionError, match="a block of 22 words for 23"):
        inputs.Columns.of(np.zeros(22, np.int32), 3)


def test_addresses_of_groups_and_ropes_follow_their_numbers():
    addresses = inputs.Addresses(
        columns=1, capacity=2, tokens=3, tokens_stride=4, token_ids=5, positions=6, logit_indices=7,
        logit_rows=8, logit_seq_lens=9, sampled_rows=10, sampled_positions=11,
    )  # fmt: skip

    words = addresses.words([inputs.Group(12, 13, 14, 15)], [inputs.Rope(20, 21, 22, 23, 24)])

    assert words.tolist() == [*range(1, 12), 1, 1, *range(12, 16), *range(20, 25)]
    assert words.dtype == np.int64


@dataclass(frozen=True)
class Slice:
    """Positions [start, stop) of a request in a row; so many of its last rows are wanted."""

    row: int
    start: int
    stop: int
    wanted: int
    draws: int = -1
    delta: int = 0


PADDING = Slice(-1, 0, 1, 1)


@dataclass(frozen=True)
class World:
    """What is remembered: tokens, tables of several cache groups, angles of several widths."""

    known: np.ndarray
    tables: list[np.ndarray]
    span_lens: list[int]
    angles: list[tuple[np.ndarray, np.ndarray]]

    @classmethod
    def random(cls, rows=7, max_len=150, span_lens=(16, 32), halves=(64, 5), seed=0):
        draw = np.random.default_rng(seed)
        return cls(
            draw.integers(0, 2**31, (rows, max_len + 1), np.int32),
            [draw.integers(0, 2**20, (rows, -(-max_len // n) + 1), np.int32) for n in span_lens],
            list(span_lens),
            [tuple(draw.standard_normal((2, max_len, half)).astype(np.float32)) for half in halves],
        )


def defined(world, slices):
    """Return what rows and wanted rows get, slice by slice."""
    out = {name: [] for name in OUT}
    slots = [[] for _ in world.tables]
    for part in slices:
        first = len(out["positions"])
        for at in range(part.start, part.stop):
            is_padding = part.row < 0
            out["positions"].append(0 if is_padding else at + part.delta)
            out["token_ids"].append(0 if is_padding else world.known[part.row, at])
            for slot, table, n in zip(slots, world.tables, world.span_lens, strict=True):
                slot.append(-1 if is_padding else table[part.row, at // n] * n + at % n)
        last = first + part.stop - part.start
        out["logit_indices"] += range(last - part.wanted, last)
        out["logit_rows"] += [part.row] * part.wanted
        seen = range(part.stop - part.wanted + 1, part.stop + 1)
        out["logit_seq_lens"] += [0] * part.wanted if part.row < 0 else seen
        drawn = [-1] * part.wanted
        if part.wanted:
            drawn[-1] = part.draws
        out["sampled_rows"] += [part.row if at >= 0 else -1 for at in drawn]
        out["sampled_positions"] += [max(at, 0) for at in drawn]
    addresses = out["positions"]
    rotations = [(cos[addresses], sin[addresses]) for cos, sin in world.angles]
    return {name: np.array(column) for name, column in out.items()}, slots, rotations


class Device:
    """The world on a GPU, and where inputs go, longer than any step and poisoned."""

    def __init__(self, on_gpu, world, capacity=300, rows=600):
        self.on_gpu, self.capacity = on_gpu, capacity
        self.known = on_gpu.put(world.known)
        self.tables = [on_gpu.put(table) for table in world.tables]
        self.angles = [tuple(map(on_gpu.put, pair)) for pair in world.angles]
        self.columns = on_gpu.put(np.zeros(inputs.columns_len(capacity), np.int32))
        poison = np.full(rows, POISON, np.int32)
        self.out = {name: on_gpu.put(poison) for name in OUT}
        self.slots = [on_gpu.put(poison) for _ in world.tables]
        self.rotations = [
            tuple(on_gpu.put(np.full((rows, pair[0].shape[1]), np.nan, np.float32)) for _ in "cs")
            for pair in world.angles
        ]
        at = pointer_of
        addresses = inputs.Addresses(
            columns=at(self.columns),
            capacity=capacity,
            tokens=at(self.known),
            tokens_stride=world.known.shape[1],
            **{name: at(array) for name, array in self.out.items()},
        )
        groups = [
            inputs.Group(at(table), table.shape[1], at(slots), n)
            for table, slots, n in zip(self.tables, self.slots, world.span_lens, strict=True)
        ]
        ropes = [
            inputs.Rope(*map(at, (*table, *place)), half=table[0].shape[1])
            for table, place in zip(self.angles, self.rotations, strict=True)
        ]
        self.addresses = on_gpu.put(addresses.words(groups, ropes))

    def fill(self, slices):
        """Write the columns of a step."""
        block = np.full(inputs.columns_len(self.capacity), POISON, np.int32)
        columns, count = inputs.Columns.of(block, self.capacity), len(slices)
        for name, column in (
            ("row", columns.table_rows),
            ("start", columns.starts),
            ("stop", columns.stops),
            ("draws", columns.sample_positions),
            ("delta", columns.position_deltas),
        ):
            column[:count] = [getattr(part, name) for part in slices]
        columns.query_start_loc[: count + 1] = np.cumsum([0, *(p.stop - p.start for p in slices)])
        columns.logit_start_loc[: count + 1] = np.cumsum([0, *(p.wanted for p in slices)])
        self.columns[:] = self.on_gpu.put(block)
        self.on_gpu.wait()  # the kernels' stream does not wait for the framework's
        return {"num_slices": count, "num_tokens": int(columns.query_start_loc[count]),
                "num_logits": int(columns.logit_start_loc[count])}  # fmt: skip

    def check(self, world, slices, sizes):
        """Assert that everything is as defined, and nothing behind it was touched."""
        columns, slots, rotations = defined(world, slices)
        get, rows = self.on_gpu.get, sizes["num_tokens"]
        for name, expected in columns.items():
            actual = get(self.out[name])
            np.testing.assert_array_equal(actual[: len(expected)], expected, name)
            assert (actual[len(expected) :] == POISON).all(), name
        for actual, expected in zip(self.slots, slots, strict=True):
            np.testing.assert_array_equal(get(actual)[:rows], expected)
        for pair, expected_pair in zip(self.rotations, rotations, strict=True):
            for actual, expected in zip(pair, expected_pair, strict=True):
                np.testing.assert_array_equal(get(actual)[:rows], expected)
                assert np.isnan(get(actual)[rows:]).all()


STEPS = {
    "one decode": [Slice(3, 41, 42, 1, 42)],
    "decodes": [Slice(row, 7 * row, 7 * row + 1, 1, 7 * row + 1) for row in (4, 0, 6, 2)],
    "padded": [Slice(5, 149, 150, 1, 150), Slice(1, 0, 1, 1, 1), PADDING, PADDING, PADDING],
    "a prompt": [Slice(2, 0, 131, 1, 131)],
    "behind media": [
        *(Slice(3, 41, 42, 1, 42, -30), Slice(1, 90, 140, 1, delta=9), Slice(2, 0, 3, 1)),
    ],
    "mixed": [
        *(Slice(1, 31, 32, 1, 32), Slice(0, 32, 33, 1), Slice(6, 0, 150, 0)),
        *(Slice(2, 16, 149, 133, 149), Slice(3, 4, 5, 0), Slice(4, 99, 108, 3, 108)),
    ],
    "as many as two looks find": [
        *(Slice(i % 7, 3 * i % 90, 3 * i % 90 + i % 3, i % 3 > 0, i % 5 - 1) for i in range(300))
    ],
    "many": [Slice(i % 7, 5 * i % 140, 5 * i % 140 + 1 + i % 9, i % 2, 9 * (i % 2) - 1)
             for i in range(40)],
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("name", STEPS)
def test_inputs_are_those_of_each_slice(on_gpu, name):
    world = World.random()
    device = Device(on_gpu, world)
    sizes = device.fill(STEPS[name])

    with new_stream() as stream:
        inputs.prepare(gpu=get_gpu()).derive(device.addresses, **sizes, stream=stream)
    on_gpu.wait()

    device.check(world, STEPS[name], sizes)


@pytest.mark.gpu
@pytest.mark.parametrize("name", STEPS)
def test_tokens_and_logit_positions_behind_the_last_slice_pad(on_gpu, name):
    world = World.random()
    device = Device(on_gpu, world)
    empty = [Slice(-1, 0, 0, 0)] * (300 - len(STEPS[name]))
    sizes = device.fill([*STEPS[name], *empty])
    larger = {
        "num_slices": 300,
        "num_tokens": sizes["num_tokens"] + 9,
        "num_logits": sizes["num_logits"] + 5,
    }

    with new_stream() as stream:
        inputs.prepare(gpu=get_gpu()).derive(device.addresses, **larger, stream=stream)
    on_gpu.wait()

    padding = [Slice(-1, 0, 1, 0)] * 9
    columns, slots, rotations = defined(world, [*STEPS[name], *padding])
    for name, expected in columns.items():
        if name in OUT_LOGITS:
            expected = np.append(expected, [-name.endswith("rows")] * 5)
        actual = on_gpu.get(device.out[name])
        np.testing.assert_array_equal(actual[: len(expected)], expected, name)
        assert (actual[len(expected) :] == POISON).all(), name
    for actual, expected in zip(device.slots, slots, strict=True):
        np.testing.assert_array_equal(on_gpu.get(actual)[: larger["num_tokens"]], expected)
    for pair, expected_pair in zip(device.rotations, rotations, strict=True):
        for actual, expected in zip(pair, expected_pair, strict=True):
            np.testing.assert_array_equal(on_gpu.get(actual)[: larger["num_tokens"]], expected)


@pytest.mark.gpu
def test_a_model_without_angles_and_more_groups_than_a_warp_has_lanes(on_gpu):
    world = World.random(span_lens=[16] * 35, halves=())
    device = Device(on_gpu, world)
    sizes = device.fill(STEPS["mixed"])

    with new_stream() as stream:
        inputs.prepare(gpu=get_gpu()).derive(device.addresses, **sizes, stream=stream)
    on_gpu.wait()

    device.check(world, STEPS["mixed"], sizes)


@pytest.mark.gpu
def test_a_captured_step_reads_the_columns_that_are_there_when_it_runs(on_gpu):
    world = World.random()
    device, kernels = Device(on_gpu, world), inputs.prepare(gpu=get_gpu())
    steps = [STEPS["padded"], [Slice(row, 3, 4, 1, 4) for row in (6, 5, 4, 3, 2)]]
    sizes = device.fill(steps[0])

    def launch(stream, _):
        kernels.derive(device.addresses, **sizes, stream=stream)

    with get_gpu().current(), new_stream() as stream, captured(stream, launch) as replay:
        for step in steps:
            assert device.fill(step) == sizes
            replay()
            on_gpu.wait()

            device.check(world, step, sizes)


@contextmanager
def pinned(*arrays):
    """Yield addresses and views of pinned memory that holds these arrays."""
    taken = []
    with get_gpu().current():
        try:
            for array in arrays:
                taken.append(call_driver(driver().cuMemHostAlloc, max(array.nbytes, 4), 0))
                ctypes.memmove(taken[-1], array.ctypes.data, array.nbytes)
            views = [
                np.ndarray(
                    array.shape, array.dtype, (ctypes.c_char * array.nbytes).from_address(at)
                )
                for at, array in zip(taken, arrays, strict=True)
            ]
            yield taken, views
        finally:
            for address in taken:
                call_driver(driver().cuMemFreeHost, address)


@pytest.mark.gpu
@pytest.mark.parametrize("num_slices", [1, 5, 300, 1000])
@pytest.mark.parametrize("sizes", [(), (1, 0, 640, 2, 129)], ids=["columns alone", "segments"])
def test_words_and_columns_go_where_they_belong_and_nowhere_else(on_gpu, num_slices, sizes):
    draw, capacity = np.random.default_rng(num_slices), 1000
    memory = np.full((50, 1000), POISON, np.int32)
    pieces = [(9 * n, 7 * n, draw.integers(0, 99, size, np.int32)) for n, size in enumerate(sizes)]
    array, block = on_gpu.put(memory), np.full(inputs.columns_len(capacity), POISON, np.int32)
    columns, base = on_gpu.put(block), pointer_of(array)
    sent = draw.integers(0, 99, len(block), np.int32)
    to = np.array([base + 4 * (1000 * row + first) for row, first, _ in pieces], np.int64)
    begins = np.cumsum([0, *(len(words) for *_, words in pieces)], dtype=np.int32)
    words = np.concatenate([np.zeros(0, np.int32), *(words for *_, words in pieces)])

    with pinned(to, begins, words, sent) as ((*segments, own), _), new_stream() as stream:
        inputs.prepare(gpu=get_gpu()).receive(
            inputs.Segments(len(pieces), *segments),
            columns,
            own,
            capacity=capacity,
            num_slices=num_slices,
            stream=stream,
        )
        on_gpu.wait()

    for row, first, piece in pieces:
        memory[row, first : first + len(piece)] = piece
    np.testing.assert_array_equal(on_gpu.get(array), memory)
    received, given = inputs.Columns.of(block, capacity), inputs.Columns.of(sent, capacity)
    for name in ("table_rows", "starts", "stops", "sample_positions", "position_deltas"):
        getattr(received, name)[:num_slices] = getattr(given, name)[:num_slices]
    for name in ("query_start_loc", "logit_start_loc"):
        getattr(received, name)[: num_slices + 1] = getattr(given, name)[: num_slices + 1]
    np.testing.assert_array_equal(on_gpu.get(columns), block)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 16, 511, 40_000])
def test_results_arrive_in_pinned_memory_and_nothing_behind_them(on_gpu, count):
    words = np.random.default_rng(count).integers(0, 2**31, count + 9, np.int32)
    there = np.full(count + 9, POISON, np.int32)

    with pinned(there) as ((to,), (arrived,)), new_stream() as stream:
        inputs.prepare(gpu=get_gpu()).send(to, on_gpu.put(words), count, stream=stream)
        on_gpu.wait()
        there[:count] = words[:count]
        np.testing.assert_array_equal(arrived, there)


@pytest.mark.gpu
def test_no_slices_are_no_launch(on_gpu):
    memory = np.arange(8, dtype=np.int32)
    array = on_gpu.put(memory)

    inputs.prepare(gpu=get_gpu()).derive(0, num_slices=0, num_tokens=0, num_logits=0, stream=0)

    on_gpu.wait()  # with this address a launch would be a fault, and memory be lost
    np.testing.assert_array_equal(on_gpu.get(array), memory)
