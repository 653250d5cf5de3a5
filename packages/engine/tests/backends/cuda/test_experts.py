"""Experts without waiting for the device, in both forms, against the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import spaninfer_op_reference as definition

torch = pytest.importorskip("torch")

from spaninfer_engine.backends.cuda.experts import (  # noqa: E402
    Experts,
    dense_experts,
    grouped_experts,
)

CHANNELS, INNER, EXPERTS, CHOSEN = 16, 8, 6, 2


def _gated(gate: Any, up: Any) -> Any:
    return torch.nn.functional.silu(gate) * up


def _inputs(rows: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    shapes = ((rows, CHANNELS), (EXPERTS, INNER, CHANNELS), (EXPERTS, INNER, CHANNELS))
    x, gate, up = (rng.standard_normal(shape) for shape in shapes)
    down = rng.standard_normal((EXPERTS, CHANNELS, INNER))
    logits = rng.standard_normal((rows, EXPERTS))
    logits[:, 3] -= 100  # nobody chooses this one
    ids, shares = definition.route(
        logits, kind="softmax", top_k=CHOSEN, normalise=True, scale=1.0,
        groups=1, group_topk=1, group_score="max",
    )  # fmt: skip
    return x, gate, up, down, ids, shares


@pytest.mark.parametrize("compute", [grouped_experts, dense_experts])
@pytest.mark.parametrize("stored", ["each", "oi", "io"])
@pytest.mark.parametrize("rows", [0, 1, 40])
def test_experts_are_computed_as_defined(rows: int, stored: Any, compute: Any) -> None:
    x, gate, up, down, ids, shares = _inputs(rows)
    joint = np.concatenate([gate, up], 1)
    stacked = {
        "each": (down, gate, up, None, "oi"),
        "oi": (down, None, None, joint, "oi"),
        "io": (down.swapaxes(1, 2), None, None, joint.swapaxes(1, 2), "io"),
    }[stored]
    *weights, layout = (
        torch.tensor(part, dtype=torch.float32) if isinstance(part, np.ndarray) else part
        for part in stacked
    )

    actual = compute(
        torch.tensor(x, dtype=torch.float32),
        torch.from_numpy(ids),
        torch.tensor(shares, dtype=torch.float32),
        Experts.of(*weights, None, None, layout),
        _gated,
    )

    expected = definition.experts(x, gate, up, down, ids, shares, "silu")
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_many_rows_go_through_all_experts_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "spaninfer_engine.backends.cuda.experts._MOST_NUMBERS", 7 * 16 * EXPERTS * 2
    )
    x, gate, up, down, ids, shares = _inputs(40)
    weights = (torch.tensor(part, dtype=torch.float32) for part in (down, gate, up))
    experts = Experts.of(*weights, None, None, None, "oi")

    actual = dense_experts(
        torch.tensor(x, dtype=torch.float32),
        torch.from_numpy(ids),
        torch.tensor(shares, dtype=torch.float32),
        experts,
        _gated,
    )

    expected = definition.experts(x, gate, up, down, ids, shares, "silu")
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-4, atol=1e-4)
