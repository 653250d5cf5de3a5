"""Expert layers against their definition; tests that need no GPU come first."""

import ml_dtypes
import numpy as np
import pytest
import spaninfer_op_reference as definition
from spaninfer_kernel_launch import (
    DeviceError,
    DTypeError,
    ShapeError,
    captured,
    get_gpu,
    new_stream,
)
from spaninfer_kernels_cuda import grouped_gemm, moe
from spaninfer_kernels_cuda.moe import MoeShape, RouteOptions
from spaninfer_kernels_cuda.moe.tuning import SURE_GEMV_TOKENS
from spaninfer_op_reference.compare import UNITS

EXPERTS, TOP_K, CHANNELS, INNER = 12, 3, 328, 136  # no multiples of a tile
SOFTMAX = RouteOptions(TOP_K, normalise=True)
DTYPES = [np.float16, ml_dtypes.bfloat16]


def test_what_fits_no_kernel_is_refused():
    x, logits = np.zeros((6, 64), np.float16), np.zeros((6, 4), np.float32)
    w13, w2 = np.zeros((4, 32, 64), np.float16), np.zeros((4, 64, 16), np.float16)
    top2 = RouteOptions(2)

    with pytest.raises(DeviceError, match="x lies in cpu memory"):
        moe.moe(x, logits, w13, w2, top2)
    with pytest.raises(ShapeError, match="router_logits: T is 5, but x has T = 6"):
        moe.moe(x, logits[:5], w13, w2, top2)
    with pytest.raises(ShapeError, match="w13: an expert has 24 rows; gate and up of w2's 16"):
        moe.moe(x, logits, w13[:, :24].copy(), w2, top2)
    with pytest.raises(ShapeError, match="b2: axis 1 is 16, but the kernel needs 64"):
        moe.moe(x, logits, w13, w2, top2, b2=np.zeros((4, 16), np.float16))
    with pytest.raises(DTypeError, match="slots holds int64, but the kernel needs int32"):
        moe.moe(x, logits, w13, w2, top2, slots=np.zeros(6, np.int64))
    with pytest.raises(ShapeError, match="correction: axis 0 is 5, but the kernel needs 4"):
        moe.moe(x, logits, w13, w2, top2, correction=np.zeros(5, np.float32))
    with pytest.raises(ShapeError, match="4 experts; router_logits choose among 4, and 1 are shar"):
        moe.moe(x, logits, w13, w2, RouteOptions(2, shared=1))


def test_gates_and_types_without_a_kernel_are_refused():
    with pytest.raises(ShapeError, match="no gate 'swish'; there are silu, gelu"):
        moe.gemv.up_variant("swish", 64, np.float16)
    with pytest.raises(DTypeError, match="float32; 16-bit floats only"):
        moe.gemv.down_variant(64, 2, np.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("tokens", [0, 1, SURE_GEMV_TOKENS, SURE_GEMV_TOKENS + 1, 150])
@pytest.mark.parametrize("extras", [False, True], ids=["plain", "biases, residual, padding"])
def test_a_layer_is_its_definition(on_gpu, dtype, tokens, extras):
    layer = Layer(tokens, dtype, extras=extras)

    y = layer.run(on_gpu, "silu")

    assert layer.accepts(on_gpu.get(y), "silu")


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [0, 1, SURE_GEMV_TOKENS, 8, 40, 150, 1500])
@pytest.mark.parametrize("extras", [False, True], ids=["plain", "biases, residual, padding"])
def test_shared_experts_are_those_of_every_token(on_gpu, tokens, extras):
    layer = Layer(tokens, ml_dtypes.bfloat16, extras=extras, shared=2)

    y = layer.run(on_gpu, "silu")

    assert layer.accepts(on_gpu.get(y), "silu")


@pytest.mark.gpu
@pytest.mark.parametrize("act", grouped_gemm.GATES)
@pytest.mark.parametrize("tokens", [2, 40])
def test_every_gate_is_its_definition(on_gpu, act, tokens):
    layer = Layer(tokens, np.float16, extras=True)

    y = layer.run(on_gpu, act)

    assert layer.accepts(on_gpu.get(y), act)


@pytest.mark.gpu
@pytest.mark.parametrize(("channels", "inner", "top_k"), [(8, 8, 1), (2048, 768, 8), (64, 1408, 6)])
@pytest.mark.parametrize("tokens", [1, 9])
def test_rows_that_loads_divide_and_rows_that_they_do_not(on_gpu, channels, inner, top_k, tokens):
    layer = Layer(tokens, np.float16, channels=channels, inner=inner, top_k=top_k)

    y = layer.run(on_gpu, "silu")

    assert layer.accepts(on_gpu.get(y), "silu")


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [SURE_GEMV_TOKENS, 40])
def test_the_result_may_take_the_place_of_the_residual(on_gpu, tokens):
    layer = Layer(tokens, np.float16, extras=True)
    residual = on_gpu.put(layer.residual)

    y = layer.run(on_gpu, "silu", residual=residual, out=residual)

    assert y is residual
    assert layer.accepts(on_gpu.get(y), "silu")


@pytest.mark.gpu
def test_a_token_has_the_same_bits_alone_and_among_few(on_gpu):
    layer = Layer(SURE_GEMV_TOKENS, np.float16)

    together = on_gpu.get(layer.run(on_gpu, "silu"))
    alone = [on_gpu.get(layer.only(token).run(on_gpu, "silu"))[0] for token in range(layer.tokens)]

    assert (together == np.stack(alone)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [CHANNELS, 4608])
@pytest.mark.parametrize("tokens", [SURE_GEMV_TOKENS, 40])
def test_the_norm_of_the_result_is_its_definition(on_gpu, tokens, channels):
    layer = Layer(tokens, np.float16, extras=True, channels=channels)
    weight = np.linspace(-1, 1, channels).astype(np.float16)
    out, normed = (on_gpu.put(np.full((tokens, channels), np.nan, np.float16)) for _ in range(2))
    step = moe.prepare(
        MoeShape(tokens, TOP_K, channels, INNER), SOFTMAX, experts=EXPERTS, act="silu",
        dtype=np.float16, gpu=get_gpu(), with_norm=True,
    )  # fmt: skip
    arrays = [
        on_gpu.put(each)
        for each in (layer.x, layer.logits, layer.w13, layer.w2, layer.b13, layer.b2)
    ]

    x, logits, *weights = arrays
    step.launch(
        x, logits, moe.Experts(*weights), out=out, residual=on_gpu.put(layer.residual),
        slots=on_gpu.put(layer.slots), norm=moe.Norm(on_gpu.put(weight), normed, 1e-6, 1.0),
        workspace=on_gpu.put(np.full(step.workspace_bytes, 255, np.uint8)),
        ticket=on_gpu.put(np.zeros(4, np.uint8)),
    )  # fmt: skip
    on_gpu.wait()

    y = on_gpu.get(out)
    assert layer.accepts(y, "silu")
    expected = definition.rms_norm(wide(y), wide(weight) + 1, 1e-6)
    np.testing.assert_allclose(wide(on_gpu.get(normed)), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_a_token_has_the_same_bits_in_every_batch_where_that_is_asked_for(on_gpu):
    layer = Layer(300, np.float16)
    gpu = get_gpu()
    arrays = [on_gpu.put(each) for each in (layer.x, layer.logits, layer.w13, layer.w2)]
    results = []
    for tokens in (300, 40, 7, 1):
        step = moe.prepare(
            MoeShape(tokens, TOP_K, CHANNELS, INNER), SOFTMAX, experts=EXPERTS, act="silu",
            dtype=np.float16, gpu=gpu, batch_invariant=True,
        )  # fmt: skip
        workspace = on_gpu.put(np.full(step.workspace_bytes, 255, np.uint8))
        out = on_gpu.put(np.full((tokens, CHANNELS), np.nan, np.float16))
        x, logits, *weights = arrays
        ticket = on_gpu.put(np.zeros(4, np.uint8))
        step.launch(
            x, logits, moe.Experts(*weights), out=out, workspace=workspace, ticket=ticket
        )  # fmt: skip
        on_gpu.wait()
        results.append(on_gpu.get(out))

    assert layer.accepts(results[0], "silu")
    assert all((few == results[0][: len(few)]).all() for few in results)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [2, 40])
def test_a_captured_layer_follows_what_its_inputs_then_hold(on_gpu, tokens):
    first, second = Layer(tokens, np.float16, seed=1), Layer(tokens, np.float16, seed=2)
    gpu = get_gpu()
    step = moe.prepare(
        MoeShape(tokens, TOP_K, CHANNELS, INNER), SOFTMAX, experts=EXPERTS, act="silu",
        dtype=np.float16, gpu=gpu,
    )  # fmt: skip
    x, logits, w13, w2 = (on_gpu.put(each) for each in (first.x, first.logits, first.w13, first.w2))
    workspace = on_gpu.put(np.full(step.workspace_bytes, 255, np.uint8))
    out = on_gpu.put(np.full((tokens, CHANNELS), np.nan, np.float16))
    ticket = on_gpu.put(np.zeros(4, np.uint8))

    def launch(stream, _):
        step.launch(
            x, logits, moe.Experts(w13, w2), out=out, workspace=workspace, ticket=ticket,
            stream=stream,
        )  # fmt: skip

    with gpu.current(), new_stream() as stream, captured(stream, launch, 2) as replay:
        for layer in (first, second):
            x[:], logits[:] = on_gpu.put(layer.x), on_gpu.put(layer.logits)
            on_gpu.wait()
            replay()
            on_gpu.wait()
            layer.w13, layer.w2 = first.w13, first.w2
            assert layer.accepts(on_gpu.get(out), "silu")


class Layer:
    """An expert layer with random weights and logits, and its result in float64."""

    def __init__(
        self, tokens, dtype, *, extras=False, channels=CHANNELS, inner=INNER, top_k=TOP_K, shared=0,
        seed=0,
    ):  # fmt: skip
        draw = np.random.default_rng(seed)

        def random(*shape, spread=1.0):
            return (spread * draw.standard_normal(shape)).astype(dtype)

        self.tokens, self.dtype = tokens, dtype
        self.options, experts = RouteOptions(top_k, normalise=True, shared=shared), EXPERTS + shared
        self.x = random(tokens, channels)
        self.logits = draw.standard_normal((tokens, EXPERTS)).astype(np.float32)
        self.logits[:, 5] -= 100  # nobody chooses this one
        self.w13 = random(experts, 2 * inner, channels, spread=channels**-0.5)
        self.w2 = random(experts, channels, inner, spread=inner**-0.5)
        self.b13, self.b2, self.residual, self.slots = None, None, None, None
        if extras:
            self.b13, self.b2 = random(experts, 2 * inner), random(experts, channels)
            self.residual = random(tokens, channels)
            self.slots = np.where(np.arange(tokens) % 3 == 1, -1, 7).astype(np.int32)

    def only(self, token):
        """The layer of this token alone."""
        alone = Layer(1, self.dtype)
        alone.x, alone.logits = self.x[token : token + 1], self.logits[token : token + 1]
        alone.w13, alone.w2 = self.w13, self.w2
        return alone

    def run(self, on_gpu, act, residual=None, out=None):
        """The layer by the kernels."""
        names = ("b13", "b2", "slots", *(("residual",) if residual is None else ()))
        given = {name: getattr(self, name) for name in names}
        put = {name: on_gpu.put(each) for name, each in given.items() if each is not None}
        if residual is not None:
            put["residual"] = residual
        arrays = (on_gpu.put(each) for each in (self.x, self.logits, self.w13, self.w2))
        return moe.moe(*arrays, self.options, act=act, out=out, **put)

    def accepts(self, y, act):
        """Return True if `y` is the definition's result up to the rounding of 16 bits, twice."""
        exact, size = self.expected(act)
        unit = UNITS[np.dtype(self.dtype).name]
        return bool((np.abs(wide(y) - exact) <= 2 * unit * (np.abs(exact) + 2 * size)).all())

    def expected(self, act):
        """The result in float64, and the size of what is summed for each token."""
        exact = {name: wide(getattr(self, name)) for name in ("x", "logits", "w13", "w2")}
        gate, up = apart(exact["w13"])
        biases = {}
        if self.b13 is not None:
            halves = apart(wide(self.b13))
            biases = {"gate_up_bias": np.concatenate(halves, 1), "down_bias": wide(self.b2)}
        ids, shares = definition.route(
            exact["logits"], top_k=self.options.top_k, normalise=self.options.normalise
        )
        shared = np.arange(EXPERTS, len(exact["w2"]))
        ids = np.concatenate([ids, np.tile(shared, (self.tokens, 1))], 1)
        shares = np.concatenate([shares, np.ones((self.tokens, len(shared)))], 1)
        if self.slots is not None:
            shares = np.where(self.slots[:, None] < 0, 0, shares)
        y = definition.experts(exact["x"], gate, up, exact["w2"], ids, shares, act, **biases)
        size = np.abs(y).max(1, initial=0, keepdims=True) + shares.sum(1, keepdims=True)
        return (y if self.residual is None else y + wide(self.residual)), size


def apart(interleaved):
    """Gates and ups of rows [E 2I ...] that lie in turn, 8 of each."""
    experts, rows, *rest = interleaved.shape
    parts = interleaved.reshape(experts, rows // 16, 2, 8, *rest)
    return tuple(parts[:, :, n].reshape(experts, rows // 2, *rest) for n in (0, 1))


def wide(array):
    """The array in float64."""
    return array.astype(np.float64)
