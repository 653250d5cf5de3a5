"""Every operator on every backend against its definition in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import pytest
import spaninfer_op_reference as definition
from backends import EVERYWHERE, EXACT, Backend
from numpy.typing import NDArray
from spaninfer_engine.ops.step import Rotation, Rows
from spaninfer_engine.spec.mlp_nodes import ActivationName, Routing

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A call of an operator, and its result by definition; None of it is rounded yet."""

    operator: str
    inputs: tuple[Array, ...]
    expected: Array
    weights: Mapping[str, Array] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)


def _rounded(shape: tuple[int, ...], seed: int) -> Array:
    """Random numbers that bfloat16 and float16 hold exactly, so that only the operator rounds."""
    rng = np.random.default_rng(seed)
    return definition.to_bfloat16(rng.standard_normal(shape)).astype(np.float64)


def _linear(rows: int) -> Case:
    x, weight, bias = _rounded((rows, 24), 0), _rounded((17, 24), 1), _rounded((17,), 2)
    expected = definition.linear(x, weight, bias)
    return Case("linear", (x,), expected, {"weight": weight, "bias": bias})


def _linear_without_bias(rows: int) -> Case:
    x, weight = _rounded((rows, 24), 0), _rounded((17, 24), 1)
    return Case("linear", (x,), definition.linear(x, weight), {"weight": weight})


def _head_linear(rows: int) -> Case:
    x, weight = _rounded((rows, 3, 8), 0), _rounded((3, 8, 5), 1)
    return Case("head_linear", (x,), definition.head_linear(x, weight), {"weight": weight})


def _rms_norm(rows: int) -> Case:
    x, weight = _rounded((rows, 24), 0), _rounded((24,), 1)
    expected = definition.rms_norm(x, weight, 0.02, plus_one=True)
    return Case("rms_norm", (x,), expected, {"weight": weight}, {"eps": 0.02, "plus_one": True})


def _rms_norm_of_heads(rows: int) -> Case:
    x, weight = _rounded((rows, 3, 8), 0), _rounded((8,), 1)
    expected = definition.rms_norm(x, weight, 1e-6)
    return Case("rms_norm", (x,), expected, {"weight": weight}, {"eps": 1e-6, "plus_one": False})


def _layer_norm(rows: int) -> Case:
    x, weight, bias = _rounded((rows, 24), 0), _rounded((24,), 1), _rounded((24,), 2)
    expected = definition.layer_norm(x, weight, bias, 0.02)
    return Case("layer_norm", (x,), expected, {"weight": weight, "bias": bias}, {"eps": 0.02})


def _layer_norm_without_bias(rows: int) -> Case:
    x, weight = _rounded((rows, 24), 0), _rounded((24,), 1)
    expected = definition.layer_norm(x, weight, None, 1e-5)
    return Case("layer_norm", (x,), expected, {"weight": weight}, {"eps": 1e-5})


def _add(rows: int) -> Case:
    x, y = _rounded((rows, 24), 0), _rounded((rows, 24), 1)
    return Case("add", (x, y), x + y * 0.25, constants={"scale": 0.25})


def _scale(rows: int) -> Case:
    x = _rounded((rows, 24), 0)
    return Case("scale", (x,), x * 0.5, constants={"factor": 0.5})


def _softcap(rows: int) -> Case:
    x = _rounded((rows, 24), 0) * 8
    return Case("softcap", (x,), definition.softcap(x, 5.0), constants={"cap": 5.0})


def _sigmoid_gate(rows: int) -> Case:
    x, gate = _rounded((rows, 24), 0), _rounded((rows, 1), 1)
    return Case("sigmoid_gate", (x, gate), x * definition.sigmoid(gate))


def _concat(rows: int) -> Case:
    x, y = _rounded((rows, 3, 8), 0), _rounded((rows, 3, 5), 1)
    return Case("concat", (x, y), np.concatenate([x, y], -1))


def _split_heads(rows: int) -> Case:
    x = _rounded((rows, 24), 0)
    return Case("split_heads", (x,), x.reshape(rows, 3, 8), constants={"heads": 3})


def _merge_heads(rows: int) -> Case:
    x = _rounded((rows, 3, 8), 0)
    return Case("merge_heads", (x,), x.reshape(rows, 24))


ROW_OPERATORS: list[Callable[[int], Case]] = [
    *(_linear, _linear_without_bias, _head_linear, _rms_norm, _rms_norm_of_heads, _layer_norm),
    *(_layer_norm_without_bias, _add, _scale, _softcap, _sigmoid_gate, _concat, _split_heads),
    _merge_heads,
]


@pytest.mark.parametrize("backend", EVERYWHERE, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 7, 64])
@pytest.mark.parametrize("make", ROW_OPERATORS, ids=lambda make: make.__name__.strip("_"))
def test_rows_are_computed_as_defined(
    make: Callable[[int], Case], rows: int, backend: Backend
) -> None:
    ops, case = backend.make(), make(rows)

    inputs = [backend.put(ops, array) for array in case.inputs]
    weights = {name: backend.put(ops, array) for name, array in case.weights.items()}
    actual = getattr(ops, case.operator)(*inputs, **weights, **case.constants)

    backend.check(ops, actual, case.expected)


@pytest.mark.parametrize("backend", EVERYWHERE, ids=str)
@pytest.mark.parametrize("act", definition.ACTIVATIONS)
def test_activations_are_computed_as_defined(act: str, backend: Backend) -> None:
    """Far into both tails too, where exponentials overflow."""
    ops = backend.make()
    gate, up = _rounded((16, 24), 0) * 4, _rounded((16, 24), 1)
    gate[0] = np.linspace(-200, 200, 24).round()

    plain = ops.activation(backend.put(ops, gate), act=act)
    gated = ops.gate(backend.put(ops, gate), backend.put(ops, up), act=act)

    backend.check(ops, plain, definition.ACTIVATIONS[act](gate))
    backend.check(ops, gated, definition.gated(gate, up, act))


def test_specs_can_name_every_activation_that_is_defined() -> None:
    assert set(get_args(ActivationName)) == set(definition.ACTIVATIONS)


@pytest.mark.parametrize("backend", EVERYWHERE, ids=str)
def test_cuts_of_the_last_axis_are_in_order(backend: Backend) -> None:
    ops, x = backend.make(), _rounded((5, 24), 0)

    parts = ops.split(backend.put(ops, x), sizes=(4, 12, 8))

    for part, expected in zip(parts, np.split(x, [4, 16], -1), strict=True):
        np.testing.assert_array_equal(ops.to_host(part), expected)


@pytest.mark.parametrize("backend", EVERYWHERE, ids=str)
def test_grouped_projections_are_queries_then_key_then_value_of_each_kv_head(
    backend: Backend,
) -> None:
    ops, x = backend.make(), _rounded((5, 2 * 5 * 4), 0)  # 2 kv heads of 3 queries, size 4

    query, key, value = ops.split_groups(backend.put(ops, x), heads=6, kv_heads=2)

    grouped = x.reshape(5, 2, 5, 4)
    np.testing.assert_array_equal(ops.to_host(query), grouped[:, :, :3].reshape(5, 6, 4))
    np.testing.assert_array_equal(ops.to_host(key), grouped[:, :, 3])
    np.testing.assert_array_equal(ops.to_host(value), grouped[:, :, 4])


# ---- operators that read the step ----------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """The part of a step that one operator reads."""

    token_ids: Any = None
    positions: Any = None
    rotations: Any = None
    logit_indices: Any = None
    replaced: Any = None
    added: Any = None


@pytest.mark.parametrize("backend", EVERYWHERE, ids=str)
@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("turned", [8, 4], ids=["whole", "partial"])
def test_heads_are_rotated_as_defined(turned: int, style: Any, backend: Backend) -> None:
    ops, x = backend.make(), _rounded((5, 3, 8), 0)
    angles = np.random.default_rng(1).uniform(0, 6, (5, turned // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    step = Given(rotations=[Rotation(ops.from_host(cos), ops.from_host(sin))])

    actual = ops.rotate(step, backend.put(ops, x), rope=0, style=style)

    backend.check(ops, actual, definition.rotate(x, cos, sin, style))


@pytest.mark.parametrize("backend", EVERYWHERE, ids=str)
def test_embeddings_are_rows_of_the_table_times_the_scale(backend: Backend) -> None:
    ops, table = backend.make(), _rounded((9, 4), 0)
    step = Given(token_ids=ops.from_host(np.array([8, 0, 8], np.int32)))
    packed = ops.pack([table.astype(np.float32)], ops.layout("embed", "table"))

    actual = ops.embed(step, table=packed, scale=3.0)

    backend.check(ops, actual, table[[8, 0, 8]] * 3)


@pytest.mark.parametrize("backend", EVERYWHERE, ids=str)
def test_positions_are_embedded_as_defined(backend: Backend) -> None:
    ops, table = backend.make(), _rounded((9, 4), 0)
    step = Given(positions=ops.from_host(np.array([[3, 0, 5]], np.int32)))

    learned = ops.learned_positions(step, table=backend.put(ops, table), offset=2)
    waves = ops.sinusoidal_positions(step, dim=6, offset=2)

    backend.check(ops, learned, table[[5, 2, 7]])
    backend.check(ops, waves, definition.sinusoidal(np.array([5, 2, 7]), 6))


@pytest.mark.parametrize("backend", EVERYWHERE, ids=str)
def test_queries_far_out_grow_with_the_logarithm_of_their_position(backend: Backend) -> None:
    ops, x = backend.make(), _rounded((3, 2, 4), 0)
    positions = np.array([[0, 7, 511]], np.int32)

    actual = ops.logn(Given(positions=ops.from_host(positions)), backend.put(ops, x), base=8)

    backend.check(ops, actual, x * np.array([1, 1, 3])[:, None, None])


@pytest.mark.parametrize("backend", EVERYWHERE, ids=str)
def test_queries_grow_by_a_step_per_length(backend: Backend) -> None:
    ops, x = backend.make(), _rounded((4, 2, 4), 0)
    positions = np.array([[0, 6, 7, 8191]], np.int32)
    step = Given(positions=ops.from_host(positions))

    actual = ops.llama4_scale(step, backend.put(ops, x), beta=0.25, length=8, offset=1)

    steps = np.array([0, 0, 1, 1024])
    backend.check(ops, actual, x * (1 + 0.25 * np.log(1 + steps))[:, None, None])


@pytest.mark.parametrize("backend", EXACT, ids=str)
def test_media_rows_are_replaced_and_added(backend: Backend) -> None:
    ops, x, vectors = backend.make(), _rounded((5, 4), 0), _rounded((2, 4), 1)
    rows = Rows(ops.from_host(np.array([3, 1])), backend.put(ops, vectors))
    step = Given(replaced=rows, added={2: rows})

    replaced = ops.replace_rows(step, backend.put(ops, x))
    added = ops.add_rows(step, backend.put(ops, x), layer=2)
    same = ops.add_rows(step, backend.put(ops, x), layer=0)

    backend.check(ops, replaced, definition.replace_rows(x, np.array([3, 1]), vectors))
    backend.check(ops, added, definition.add_rows(x, np.array([3, 1]), vectors))
    backend.check(ops, same, x)


@pytest.mark.parametrize("backend", EXACT, ids=str)
def test_only_logit_positions_are_gathered(backend: Backend) -> None:
    ops, x = backend.make(), _rounded((5, 4), 0)
    step = Given(logit_indices=ops.from_host(np.array([4, 2], np.int32)))

    actual = ops.gather_rows(step, backend.put(ops, x))

    np.testing.assert_array_equal(ops.to_host(actual), x[[4, 2]])


# ---- experts -------------------------------------------------------------------------------------

SOFTMAX: dict[str, Any] = dict(
    kind="softmax", top_k=3, normalise=False, scale=1.0, groups=1, group_topk=1, group_score="max"
)
ROUTES = {
    "softmax": SOFTMAX,
    "normalised and scaled": {**SOFTMAX, "normalise": True, "scale": 2.5},
    "best groups by their best": {**SOFTMAX, "groups": 4, "group_topk": 2},
    "sigmoids, best groups by their two best": {
        **SOFTMAX,
        **dict(kind="sigmoid", normalise=True, groups=4, group_topk=2, group_score="top2"),
    },
}


@pytest.mark.parametrize("backend", EXACT, ids=str)
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("scores", ROUTES.values(), ids=ROUTES)
def test_experts_are_chosen_as_defined(
    scores: dict[str, Any], corrected: bool, backend: Backend
) -> None:
    ops, logits = backend.make(), np.random.default_rng(0).standard_normal((33, 16))
    correction = np.random.default_rng(1).standard_normal(16) * 0.1 if corrected else None
    packed = {} if correction is None else {"correction": backend.put(ops, correction)}

    ids, shares = ops.route(backend.put(ops, logits), routing=Routing(**scores), **packed)

    expected_ids, expected = definition.route(logits, correction=correction, **scores)
    np.testing.assert_array_equal(ops.to_host(ids), expected_ids)
    backend.check(ops, shares, expected)


@pytest.mark.parametrize("backend", EVERYWHERE, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 40])
@pytest.mark.parametrize("stored", ["each", "oi", "io", "oi of gpt-oss", "io of gpt-oss"])
def test_experts_are_computed_as_defined(stored: str, rows: int, backend: Backend) -> None:
    ops, x = backend.make(), _rounded((rows, 12), 0)
    gate, up, down = (_rounded(s, i) for i, s in enumerate([(6, 8, 12), (6, 8, 12), (6, 12, 8)]))
    logits = np.random.default_rng(3).standard_normal((rows, 6)).astype(np.float32)
    ids, shares = definition.route(logits, **{**SOFTMAX, "top_k": 2})
    weights = {"gate": gate, "up": up, "down": down}
    if stored != "each":
        weights = {"gate_up": np.concatenate([gate, up], 1), "down": down}
    if stored.startswith("io"):
        weights = {name: weight.swapaxes(1, 2) for name, weight in weights.items()}
    act, biases = "silu", {}
    if stored.endswith("gpt-oss"):  # some are clamped
        act = "clamped_swiglu"
        biases = {"gate_up_bias": _rounded((6, 16), 4) * 8, "down_bias": _rounded((6, 12), 5)}

    actual = ops.experts(
        backend.put(ops, x),
        ops.from_host(ids),
        ops.from_host(shares),
        act=act,
        layout="io" if stored.startswith("io") else "oi",
        **{name: backend.put(ops, each) for name, each in {**weights, **biases}.items()},
    )

    expected = definition.experts(x, gate, up, down, ids, shares.astype(float), act, **biases)
    backend.check(ops, actual, expected)


@pytest.mark.parametrize("rows", [5, 3000])  # a GPU has a kernel for few, and another for many
@pytest.mark.parametrize("backend", EVERYWHERE, ids=str)
def test_routers_score_in_float32(backend: Backend, rows: int) -> None:
    ops, x, weight = backend.make(), _rounded((rows, 24), 0), _rounded((16, 24), 1)

    logits = ops.router(backend.put(ops, x), weight=backend.put(ops, weight))

    error = definition.relative_error(ops.to_host(logits), definition.linear(x, weight))
    assert error < definition.tolerance("float32")
