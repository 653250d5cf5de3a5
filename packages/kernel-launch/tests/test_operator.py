"""Public calls: which preparation is found for which arrays, and what kernels are then given."""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from spaninfer_kernel_launch import (
    ADDRESS,
    Call,
    Float32,
    Int32,
    Launch,
    NamedCalls,
    Operator,
    Pointer,
    Preparations,
    ShapeError,
    Signature,
    SignatureError,
    Step,
    Variant,
    compile_variant,
    get_gpu,
    load,
    new_results,
    view_at,
)

torch = pytest.importorskip("torch", reason="torch is not installed")


def describe(options, given):
    """The options, and what a view of each array says."""
    views = {name: view_at(spec) for name, spec in given.items() if spec != ADDRESS}
    about = {name: (view.shape, view.strides, view.dtype.name) for name, view in views.items()}
    return options, about


def base():
    """A tensor of which others are parts."""
    return torch.arange(4096, dtype=torch.float32)


LIKE_OTHERS = {
    "a tensor": lambda: base().view(64, 64),
    "fewer rows": lambda: base().view(64, 64)[:8],
    "rows apart": lambda: base().view(32, 128)[:, :64],
    "transposed": lambda: base().view(64, 64).T,
    "half": lambda: base().view(64, 64).half(),
    "a parameter": lambda: torch.nn.Parameter(base().view(64, 64)),
    "a numpy array": lambda: base().view(64, 64).numpy(),
    "one axis": base,
}


@pytest.mark.parametrize("inference", [False, True])
def test_what_is_prepared_for_other_arrays_is_never_found(inference):
    found = Preparations("x y", describe)

    with torch.inference_mode(inference):
        for _ in range(3):  # prepared, remembered, recognised
            for option in (1, 2):
                for x in (make() for make in LIKE_OTHERS.values()):
                    for y in (None, torch.zeros(3), torch.zeros(4)):
                        _, (options, about) = found.find(option, (x, y))
                        strides = np.asarray(torch.as_tensor(x).stride())
                        names = {"x": x} if y is None else {"x": x, "y": y}
                        assert options == option
                        assert about.keys() == names.keys()
                        assert about["x"][0] == tuple(x.shape)
                        assert about["x"][1] == tuple(strides)
                        assert about["x"][2] == str(x.dtype).removeprefix("torch.")
                        assert y is None or about["y"][0] == tuple(y.shape)


def test_arrays_like_those_before_are_not_prepared_for_again():
    prepared = []
    found = Preparations("x y", lambda options, given: prepared.append((options, given)))

    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        for _ in range(4):
            with mode():
                x, y = torch.zeros(5, 6), torch.zeros(6)
                addresses, _ = found.find("options", (x, y))
                assert addresses == [x.data_ptr(), y.data_ptr()]

    assert len(prepared) == 1


def test_an_array_at_another_alignment_is_another():
    seen = Preparations("x", lambda _, given: given["x"][4])
    memory = torch.zeros(4096)
    first = -(memory.data_ptr() // 4) % 4  # the element that begins at a multiple of 16 bytes

    found = [seen.find(None, (memory[first + at :][:64],))[1] for at in (0, 1, 0, 4, 2, 4, 0)]

    assert found == [0, 4, 0, 0, 8, 0, 0]


def test_one_tensor_may_be_given_twice():
    found, x = Preparations("x y", describe), torch.zeros(3)

    for _ in range(3):
        addresses, (_, about) = found.find(None, (x, x))
        assert addresses == [x.data_ptr()] * 2
        assert about.keys() == {"x", "y"}


def test_addresses_are_told_from_arrays():
    found, x = Preparations("x y", describe, addresses=True), torch.zeros(3)

    for _ in range(2):
        assert found.find(1, (x, 4096)) == (
            [x.data_ptr(), 4096],
            (1, {"x": ((3,), (1,), "float32")}),
        )
        assert found.find(1, (4096, None)) == ([4096], (1, {}))


def test_what_is_refused_once_is_refused_again():
    def refuse(_, given):
        raise ShapeError(f"x has shape {view_at(given['x']).shape}")

    found = Preparations("x", refuse)

    for _ in range(3):
        with pytest.raises(ShapeError, match=r"x has shape \(3,\)"):
            found.find(None, (torch.zeros(3),))


class Named(NamedTuple):
    """As much of a call as names of values need."""

    names: tuple[str, ...]


def test_places_are_counted_from_what_is_not_derived():
    call = Named(("a", "b", "c", "map"))
    calls = NamedCalls(
        ((call, {"c": "third"}),),
        {
            "a": ("x", 0),
            "b": ("a", 256),
            "third": ("b", 64),
            "map": ("a", bytes),
            "unread": ("x", 8),
            "unread_map": ("third", bytes),
        },
    )

    (used,), derived = calls.used

    assert used == (call, {"a": "x", "b": "b", "c": "third", "map": "map"})
    assert derived == {"b": ("x", 256), "third": ("x", 320), "map": ("x", bytes)}
    assert [*derived] == ["b", "third", "map"]


KERNELS = """
extern "C" __global__ void scale(float* out, const float* x, const float* bias, float by, int n) {
  const int i = threadIdx.x;
  if (i < n) out[i] = by * x[i] + (bias ? bias[i] : 0.0f);
}
extern "C" __global__ void draw(int* drawn, unsigned* ticket) {
  const unsigned own = atomicAdd(ticket, 1u);
  if (own == gridDim.x - 1) *ticket = 0;
  if (own < gridDim.x) drawn[own] = 1;
}
"""


class Scale(NamedTuple):
    out: Pointer
    x: Pointer
    bias: Pointer
    by: Float32


class Draw(NamedTuple):
    drawn: Pointer
    ticket: Pointer


class Count(NamedTuple):
    n: Int32


SCALE, DRAW = Signature("scale", Scale, Count), Signature("draw", Draw)
BLOCKS = 64


@pytest.fixture
def kernel(source_of):
    """Loads one of the kernels above."""
    variant = Variant.of("scale", source_of(KERNELS, (), (SCALE, DRAW)), {})
    compiled = compile_variant(variant, get_gpu().arch)
    return lambda signature: load(compiled, get_gpu(), signature)


@pytest.fixture
def scaled(kernel):
    """An operator of two launches: by * (by * x + bias), then the last half of that once more.

    Between them lie as many floats more as the options say.
    """
    launch = Launch((1, 1, 1), (128, 1, 1))

    def prepare(more, given):
        (n,) = view_at(given["x"]).shape
        first = Call(kernel(SCALE), launch, Count(n))
        second = Call(kernel(SCALE), launch, Count(n // 2))
        calls = (
            (first, {"out": "between"}),
            (second, {"x": "last_half", "bias": "nothing"}),
        )
        derived = {"middle": ("between", 0), "last_half": ("middle", 4 * (n // 2))}
        new = new_results(given, get_gpu(), ("out", (n // 2,), np.float32, 16))
        scratch = ("other", (n,), np.uint8, 1), ("between", (n + more,), np.float32, 16)
        return Step(get_gpu(), NamedCalls(calls, derived), new, scratch, {"nothing": 0})

    return Operator("x bias out", prepare, numbers="by")


@pytest.mark.gpu
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("gives", [False, True])
def test_kernels_are_given_values_by_name(scaled, biased, gives):
    for n in (64, 100, 64, 64):
        x, bias = torch.randn(2, n, device="cuda")
        out = torch.empty(n // 2, device="cuda") if gives else None
        new = scaled.start(0, (x, bias if biased else None, out), (0.5,))

        expected = 0.5 * (0.5 * x + (bias if biased else 0))[n // 2 :]
        torch.testing.assert_close(out if gives else new[0], expected)
        assert len(new) == (0 if gives else 1)


@pytest.mark.gpu
@pytest.mark.parametrize("more", [0, 2**20])  # in what a thread keeps for a stream, and beyond
def test_calls_of_threads_on_one_stream_do_not_mix(scaled, more):
    stream = torch.cuda.Stream()
    inputs = [torch.randn(2 * half, device="cuda") for half in (40, 50, 60, 64)]
    torch.cuda.synchronize()

    def often(x):
        with torch.cuda.stream(stream):
            return [scaled.start(more, (x, None, None), (0.5,))[0] for _ in range(200)]

    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(often, inputs)]

    torch.cuda.synchronize()
    for x, results in zip(inputs, found, strict=True):
        assert all(torch.equal(each, 0.25 * x[len(x) // 2 :]) for each in results)


@pytest.mark.gpu
def test_a_graph_has_scratch_of_its_own(scaled):
    x, ones = torch.randn(64, device="cuda"), torch.ones(64, device="cuda")
    scaled.start(0, (x, None, None), (0.5,))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (out,) = scaled.start(0, (x, None, None), (0.5,))

    replayed = torch.cuda.Stream()
    for _ in range(100):  # side by side with calls on another stream
        with torch.cuda.stream(replayed):
            graph.replay()
        scaled.start(0, (ones, None, None), (0.5,))

    torch.cuda.synchronize()
    assert torch.equal(out, 0.25 * x[32:])


@pytest.mark.gpu
def test_a_value_without_a_name_is_refused(kernel):
    call = Call(kernel(SCALE), Launch((1, 1, 1), (128, 1, 1)), Count(3))
    operator = Operator("x", lambda *_: Step(get_gpu(), NamedCalls.of(call)))

    with pytest.raises(SignatureError, match="kernel scale: no value is named out"):
        operator.start(None, (torch.zeros(3, device="cuda"),))


@pytest.fixture
def drawing(kernel):
    """An operator that writes a 1 for each number that a block drew."""

    def prepare(_, given):  # noqa: ARG001
        call = Call(kernel(DRAW), Launch((BLOCKS, 1, 1), (1, 1, 1)))
        return Step(get_gpu(), NamedCalls.of(call), draws=True)

    return Operator("drawn", prepare)


def drawn_once(operator, stream=None):
    """Whether the blocks of a call draw every number."""
    drawn = torch.zeros(BLOCKS, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    operator.start(None, (drawn,), stream=stream)
    torch.cuda.synchronize()
    return drawn.tolist() == [1] * BLOCKS


@pytest.mark.gpu
def test_a_ticket_is_ready_for_every_call_on_any_stream(drawing):
    streams = [None, torch.cuda.Stream(), torch.cuda.Stream()]

    assert all(drawn_once(drawing, stream) for _ in range(3) for stream in streams)


@pytest.mark.gpu
def test_a_graph_has_a_ticket_of_its_own(drawing):
    drawn = torch.zeros(BLOCKS, dtype=torch.int32, device="cuda")
    assert drawn_once(drawing)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawing.start(None, (drawn,))

    for _ in range(3):
        drawn.zero_()
        graph.replay()
        assert drawn_once(drawing)
        assert drawn.tolist() == [1] * BLOCKS
