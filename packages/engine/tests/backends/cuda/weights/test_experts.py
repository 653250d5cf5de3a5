"""Weights of experts in the order of kernels, from every form that checkpoints have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from spaninfer_engine.dummy_array import DummyArray
from stepping import make_ops

torch = pytest.importorskip("torch")

from spaninfer_engine.backends.cuda.weights import experts  # noqa: E402
from spaninfer_engine.backends.torch.upload import fill  # noqa: E402

EXPERTS, INNER, CHANNELS = 5, 24, 16
FLOAT = {"dtype": torch.float32, "device": torch.device("cpu")}


def _random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def _in_turn(gate: Any, up: Any) -> Any:
    """Row by row: 8 of the gate, their 8 of up, and so on."""
    rows = [
        part[:, first : first + 8] for first in range(0, gate.shape[1], 8) for part in (gate, up)
    ]
    return np.concatenate(rows, 1)


@pytest.mark.parametrize("stored", ["each", "stacked", "stacked, inputs first"])
@pytest.mark.parametrize("buffer_bytes", [1, 2 * 24 * 16 * 4 * 2, 1 << 20], ids=["1", "2", "all"])
def test_gate_and_up_lie_in_turn_however_few_experts_pass_at_once(
    stored: str, buffer_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experts, "_BUFFER_BYTES", buffer_bytes)
    both = _random(EXPERTS, 2 * INNER, CHANNELS)
    gate, up = both[:, :INNER], both[:, INNER:]
    arrays, layout = {
        "each": ([gate, up], experts.GATE_UP),
        "stacked": ([both], experts.GATE_UP),
        "stacked, inputs first": ([both.swapaxes(1, 2)], experts.GATE_UP_IO),
    }[stored]

    packed = experts.pack_experts(arrays, layout, fill, **FLOAT)

    assert packed.is_contiguous()
    np.testing.assert_array_equal(packed.numpy(), _in_turn(gate, up))


def test_biases_lie_in_turn_as_their_rows_do() -> None:
    both = _random(EXPERTS, 2 * INNER)

    packed = experts.pack_experts([both], experts.GATE_UP, fill, **FLOAT)

    np.testing.assert_array_equal(packed.numpy(), _in_turn(both[:, :INNER], both[:, INNER:]))


def test_down_projections_have_inputs_last() -> None:
    down = _random(EXPERTS, INNER, CHANNELS)

    packed = experts.pack_experts([down], experts.DOWN_IO, fill, **FLOAT)

    np.testing.assert_array_equal(packed.numpy(), down.swapaxes(1, 2))


@pytest.mark.parametrize("count", [1, 2])
def test_noise_is_drawn_in_place(count: int) -> None:
    noise = DummyArray((EXPERTS, 2 * INNER // count, CHANNELS), seed=3, mean=0.0, std=0.5)

    packed = experts.pack_experts([noise] * count, experts.GATE_UP, fill, **FLOAT)

    assert packed.shape == (EXPERTS, 2 * INNER, CHANNELS)
    assert packed.std().item() == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize("stored", ["each", "stacked"])
@pytest.mark.parametrize("buffer_bytes", [1, 1 << 20], ids=["1", "all"])
def test_an_mlp_that_all_tokens_share_becomes_experts_behind_the_others(
    stored: str, buffer_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experts, "_BUFFER_BYTES", buffer_bytes)
    gate, up = _random(EXPERTS, 2, INNER, CHANNELS).swapaxes(0, 1)
    own = [gate, up] if stored == "each" else [np.concatenate([gate, up], 1)]
    shared_gate, shared_up = _random(2, 3 * INNER, CHANNELS)

    packed = experts.pack_experts(
        [*own, shared_gate, shared_up], experts.GATE_UP_SHARED, fill, **FLOAT
    )

    assert packed.is_contiguous()
    np.testing.assert_array_equal(packed[:EXPERTS].numpy(), _in_turn(gate, up))
    for number in range(3):
        rows = slice(number * INNER, (number + 1) * INNER)
        expected = _in_turn(shared_gate[None, rows], shared_up[None, rows])[0]
        np.testing.assert_array_equal(packed[EXPERTS + number].numpy(), expected)


def test_the_down_projection_that_all_share_is_cut_by_columns() -> None:
    down, shared = _random(EXPERTS, CHANNELS, INNER), _random(CHANNELS, 3 * INNER)

    packed = experts.pack_experts([down, shared], experts.DOWN_SHARED, fill, **FLOAT)

    np.testing.assert_array_equal(packed[:EXPERTS].numpy(), down)
    for number in range(3):
        columns = slice(number * INNER, (number + 1) * INNER)
        np.testing.assert_array_equal(packed[EXPERTS + number].numpy(), shared[:, columns])


def test_noise_of_an_mlp_that_all_share_is_drawn_in_place() -> None:
    noise = DummyArray((EXPERTS, INNER, CHANNELS), seed=3, mean=0.0, std=0.5)
    shared = DummyArray((2 * INNER, CHANNELS), seed=4, mean=0.0, std=0.5)

    packed = experts.pack_experts(
        [noise, noise, shared, shared], experts.GATE_UP_SHARED, fill, **FLOAT
    )

    assert packed.shape == (EXPERTS + 2, 2 * INNER, CHANNELS)
    assert packed.std().item() == pytest.approx(0.5, rel=0.1)


def test_corrections_of_scores_keep_every_bit_of_float32() -> None:
    ops = make_ops("cuda bfloat16", (), device="cpu")
    correction = _random(EXPERTS)

    packed = ops.pack([correction], ops.layout("route", "correction"))

    np.testing.assert_array_equal(packed.numpy(), correction)
