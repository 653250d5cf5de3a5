"""Linear attention with states in spans against its definition; what needs no GPU comes first."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import spaninfer_op_reference as definition
from spaninfer_kernel_launch import DeviceError, ShapeError
from spaninfer_kernels_cuda import delta_rule
from spaninfer_op_reference import relative_error, tolerance

DTYPES = [np.float16, ml_dtypes.bfloat16]
SPAN_LEN = 16
HEADS = [
    dict(key_heads=2, value_heads=4, key_size=128, value_size=128),
    dict(key_heads=2, value_heads=6, key_size=64, value_size=96),
    dict(key_heads=2, value_heads=4, key_size=12, value_size=10),
]


def test_arguments_that_do_not_fit_are_named():
    step = Steps(HEADS[0], np.float16, [(0, 5)])
    x, a, b = step.rows()
    slices = step.slices()

    def run(**other):
        given = dict(x=x, gates=(a, b), decays=step.decays, states=step.states, slices=slices)
        given |= other
        return delta_rule.delta_rule(**given)

    with pytest.raises(ShapeError, match=r"x: rows of 1022 are not queries and keys of 128"):
        run(x=x[:, :-2])
    with pytest.raises(ShapeError, match=r"b: T is 4, but x has T = 5"):
        run(gates=(a, b[:4]))
    with pytest.raises(ShapeError, match=r"query_start_loc: 3 bounds of 1 slices"):
        run(slices=slices._replace(query_start_loc=np.zeros(3, np.int32)))
    with pytest.raises(ShapeError, match=r"num_decodes is 2, but there are 1 slices"):
        run(slices=slices._replace(num_decodes=2))
    with pytest.raises(ShapeError, match=r"states: float32 spans of \(4, 128, 128\)"):
        run(states=step.states.astype(np.float16))
    with pytest.raises(DeviceError, match="x lies in cpu memory"):
        run()
    with pytest.raises(ShapeError, match="weight: 3 taps, but the kernel takes 2 or 4"):
        delta_rule.convolution.variant_for(64, 3, np.float16)
    with pytest.raises(ShapeError, match="keys of at most 128"):
        delta_rule.rule.decode_variant(delta_rule.RuleOptions(256, 128, np.dtype(np.float16)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("heads", HEADS, ids=lambda heads: f"{heads['key_size']} channels")
@pytest.mark.parametrize(
    "parts",
    [
        [(0, 1)],
        [(40, 41), (0, 1), (16, 17), (31, 32)],
        [(0, 33)],
        [(7, 8), (0, 17), (5, 150), (0, 2), (3, 67), (64, 65)],
        [(1, 1030), (0, 64), (0, 128)],
    ],
    ids=["one", "decodes", "a prompt", "mixed", "long"],
)
def test_sequences_go_on_where_their_states_lie(on_gpu, heads, dtype, parts):
    step = Steps(heads, dtype, parts)

    step.run(on_gpu)

    step.check()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_a_prompt_in_pieces_leaves_the_state_of_the_whole(on_gpu, dtype):
    """Five steps, the last of which are decodes, against one recursion in float64."""
    step = Steps(HEADS[0], dtype, [(0, 3), (0, 70)])
    for parts in ([(3, 50), (70, 71)], [(50, 51), (71, 72)], [(51, 300), (72, 100)]):
        step.run(on_gpu)
        step.check()
        step.go_on(parts)
    step.run(on_gpu)

    step.check()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("snapshots", [{0: 5}, {1: 2}, {0: 0, 1: 1, 3: 2}])
def test_snapshots_are_left_on_the_way(on_gpu, dtype, snapshots):
    step = Steps(HEADS[1], dtype, [(3, 4), (2, 100)])
    step.keep(1, snapshots)

    step.run(on_gpu)

    step.check()
    assert step.num_snapshots == len(snapshots)


@pytest.mark.gpu
def test_padding_reads_zeros_and_touches_no_state(on_gpu):
    step = Steps(HEADS[0], np.float16, [(4, 5), (0, 1), (9, 60), (20, 20)])
    step.pad(1, 3)
    before = step.states.copy()

    step.run(on_gpu)

    step.check()
    np.testing.assert_array_equal(step.states[step.spans_of(1)], before[step.spans_of(1)])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*DTYPES, np.float32], ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize(("rows", "heads", "size"), [(1, 32, 128), (1009, 3, 10), (7, 5, 96)])
def test_heads_are_normed_and_gated(on_gpu, dtype, rows, heads, size):
    draw = np.random.default_rng(rows)
    x, z = (draw.standard_normal((rows, heads, size)).astype(dtype) for _ in range(2))
    weight = draw.standard_normal(size).astype(dtype)

    y = delta_rule.gated_rms_norm(*map(on_gpu.put, (x, z, weight)), eps=1e-6)

    x, z, weight = (each.astype(np.float64) for each in (x, z, weight))
    expected = definition.rms_norm(x, weight, eps=1e-6) * z / (1 + np.exp(-z))
    assert near(on_gpu.get(y), expected, tolerance(np.dtype(dtype).name))


def near(actual, expected, limit):
    """Compare with the typical size of numbers, or with their own where they are larger: results
    of small decays have some that are twenty times as large, and are rounded as these are.
    """
    actual = actual.astype("f8")
    typical = np.sqrt((expected**2).mean())
    return bool((np.abs(actual - expected) <= limit * (typical + np.abs(expected))).all())


class Steps:
    """Slices (start, stop) of sequences with random states, and what the definition makes of them.

    Each sequence has a span of its own, in a row of the tables that is not the slice's number.
    """

    def __init__(self, heads, dtype, parts, seed=0):
        self.sizes, self.dtype = SimpleNamespace(**heads), np.dtype(dtype)
        self.draw = draw = np.random.default_rng(seed)
        n, longest = len(parts), max(stop for _, stop in parts) + 400
        sizes = self.sizes
        self.keys, self.values = (
            sizes.key_heads * sizes.key_size,
            sizes.value_heads * sizes.value_size,
        )
        self.channels = 2 * self.keys + self.values
        state = (sizes.value_heads, sizes.key_size, sizes.value_size)
        self.num_spans = 8 * n + 3
        self.states = 0.3 * draw.standard_normal((self.num_spans, *state)).astype(np.float32)
        self.inputs = draw.standard_normal((self.num_spans, 3, self.channels)).astype(np.float32)
        self.own = draw.permutation(self.num_spans - n * 6)[:n]
        self.rows_of = draw.permutation(n + 2)[:n]
        self.tables = np.full((n + 2, -(-longest // SPAN_LEN)), 10**6, np.int32)
        for row, span in zip(self.rows_of, self.own, strict=True):
            self.tables[row] = span
        self.decays = tuple(draw.uniform(-1, 1, sizes.value_heads).astype("f4") for _ in range(2))
        self.weight = draw.standard_normal((self.channels, 4)).astype(self.dtype)
        self.padding = set()
        self.go_on(parts)

    def go_on(self, parts):
        """Take the next slices of the same sequences."""
        self.parts = parts
        count, draw = sum(stop - start for start, stop in parts), self.draw
        self.x = draw.standard_normal((count, self.channels)).astype(self.dtype)
        gates = draw.standard_normal((count, 3 * self.sizes.value_heads)).astype(self.dtype)
        self.gates = gates  # of rows that lie apart: b is the middle, a the end

    def keep(self, number, snapshots):
        """Let the table of a sequence name spans for snapshots by index."""
        for index, offset in snapshots.items():
            self.tables[self.rows_of[number], index] = self.num_spans - 1 - offset

    def pad(self, *numbers):
        """Let slices belong to nobody."""
        self.padding |= set(numbers)

    def spans_of(self, number):
        return self.own[number]

    def rows(self):
        heads = self.sizes.value_heads
        return self.x, self.gates[:, 2 * heads :], self.gates[:, heads : 2 * heads]

    @property
    def bounds(self):
        return np.cumsum([0, *(stop - start for start, stop in self.parts)]).astype(np.int32)

    @property
    def num_decodes(self):
        lengths = np.diff(self.bounds)
        return int(np.argmax(lengths > 1)) if (lengths > 1).any() else len(lengths)

    def slices(self, put=lambda x: x):
        rows = self.rows_of.astype(np.int32)
        rows[list(self.padding)] = -1
        stops = np.array([stop for _, stop in self.parts], np.int32)
        arrays = map(put, (rows, stops, self.bounds, self.tables))
        return delta_rule.Slices(*arrays, SPAN_LEN, self.num_decodes)

    def run(self, on_gpu):
        """Run the kernels into poisoned results; keep states and results of the definition."""
        put, dims = on_gpu.put, (self.sizes.value_heads, self.sizes.value_size)
        slices, count = self.slices(put), len(self.x)
        before = self.inputs.astype(np.float64), self.states.astype(np.float64)
        inputs, states = put(self.inputs), put(self.states)
        poison = np.full((count, self.channels), np.nan, self.dtype)
        mixed = delta_rule.convolve(put(self.x), put(self.weight), inputs, slices, out=put(poison))
        self.mixed = on_gpu.get(mixed)
        gates = put(self.gates)
        h = dims[0]
        out = delta_rule.delta_rule(
            mixed,
            (gates[:, 2 * h :], gates[:, h : 2 * h]),
            tuple(map(put, self.decays)),
            states,
            slices,
            out=put(np.full((count, *dims), np.nan, self.dtype)),
        )
        self.out, self.inputs, self.states = map(on_gpu.get, (out, inputs, states))
        self.expect(*before)

    def expect(self, inputs, states):
        """Compute the same in float64; the rule begins with rows as they were rounded."""
        sizes, x, mixed = self.sizes, self.x.astype("f8"), self.mixed.astype("f8")
        weight = self.weight.astype("f8")
        _, a, b = (each.astype("f8") for each in self.rows())
        g, beta = definition.delta_gates(a, b, *(each.astype("f8") for each in self.decays))
        made = np.zeros_like(mixed)
        out = np.zeros((len(x), sizes.value_heads, sizes.value_size))
        self.num_snapshots = 0
        for number, (start, stop) in enumerate(self.parts):
            if number in self.padding:
                continue
            table, first = self.tables[self.rows_of[number]], self.bounds[number]
            source = table[(start - 1) // SPAN_LEN] if start else None
            kept = np.zeros_like(inputs[0]) if source is None else inputs[source]
            state = np.zeros_like(states[0]) if source is None else states[source]
            last = (stop - 1) // SPAN_LEN
            borders = {
                (index + 1) * SPAN_LEN: table[index]
                for index in range(start // SPAN_LEN, last)
                if table[index] != table[last]
            }
            self.num_snapshots += len(borders)
            for border, span in (borders | {stop: table[last]}).items():
                part = slice(first, first + border - start)
                plain, kept = definition.convolve(x[part], weight, kept)
                made[part] = plain / (1 + np.exp(-plain))
                rows = mixed[part]
                q, k = (
                    rows[:, at * self.keys : (at + 1) * self.keys].reshape(
                        -1, sizes.key_heads, sizes.key_size
                    )
                    for at in range(2)
                )
                v = rows[:, 2 * self.keys :].reshape(-1, sizes.value_heads, sizes.value_size)
                out[part], state = definition.delta_rule(q, k, v, g[part], beta[part], state)
                inputs[span], states[span] = kept, state
                start, first = border, part.stop
        self.expected = made, out, inputs, states

    def check(self):
        """Compare results and all spans."""
        made, out, inputs, states = self.expected
        limit = tolerance(self.dtype.name)
        assert near(self.mixed, made, limit)
        assert near(self.out, out, limit)
        np.testing.assert_allclose(self.inputs, inputs, rtol=1e-6)
        assert relative_error(self.states.astype("f8"), states) <= 2e-4
