"""Fused kernels against their operators one by one, and the patterns that claims match."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backends import EXACT, Backend
from contexts import metadata_of
from families import FAMILIES
from oracle import Oracle
from spaninfer_engine.ops.bound import TEXT, Programs
from spaninfer_engine.ops.operation import Operation, Use
from spaninfer_engine.ops.step import Step
from spaninfer_engine.program.bind import bind
from spaninfer_engine.program.lower import lower
from spaninfer_engine.program.program import Program
from spaninfer_engine.spec.weight_nodes import Weight
from spaninfer_op_reference import linear
from stepping import Model

RNG = np.random.default_rng(0)


class Arrays:
    """A reader that makes each array up when it is first asked for."""

    def __init__(self, *uses: Use) -> None:
        weights = [weight for use in uses for weight in use.tensors]
        self._arrays = {w.name: RNG.standard_normal(w.shape).astype(np.float32) for w in weights}

    def read(self, name: str) -> Any:
        return self._arrays[name]

    def quantized(self, name: str) -> None:  # noqa: ARG002
        return None

    def find(self, name: str) -> Any:
        return self._arrays.get(name)


def _linear(name: str, rows: int, biased: bool) -> Operation:
    uses = [Use("weight", (Weight(f"{name}.w", (rows, 8)),))]
    if biased:
        uses.append(Use("bias", (Weight(f"{name}.b", (rows,)),)))
    return Operation("linear", ("x",), (name,), tuple(uses))


def _program(*linears: Operation) -> Program:
    """Embed a token as x, project it, and join the first and the last projection."""
    table = Use("table", (Weight("t", (3, 8)),))
    embed = Operation("embed", (), ("x",), (table,), (("scale", 1.0),))
    both = (*linears[0].outputs, *linears[-1].outputs)
    return Program((embed, *linears, Operation("concat", both, ("y",))), "y", (), ())


def _arrays(program: Program) -> Arrays:
    return Arrays(*(use for operation in program.operations for use in operation.weights))


def _names(bound: Programs[Any]) -> list[str]:
    return [part.name for step in bound[TEXT].kernels for part in step.parts or (step,)]


def _step(ops: Any, count: int) -> Step[Any]:
    """Return a step of tokens 0, 1, 2 … of one request, all of whose logits are wanted."""
    numbers = np.arange(count, dtype=np.int32)
    step: Step[Any] = Step(
        token_ids=ops.from_host(numbers),
        positions=ops.from_host(numbers[None]),
        rotations=(),
        logit_indices=ops.from_host(numbers),
        attention=metadata_of(count),
    )
    ops.prepare(step)
    return step


@pytest.mark.parametrize("backend", EXACT[1:], ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_projections_of_one_input_become_one(biased: bool, backend: Backend) -> None:
    program = _program(_linear("q", 6, biased), _linear("k", 3, biased), _linear("v", 4, biased))
    reader, ops = _arrays(program), backend.make()

    bound = bind(program, ops, reader)

    x = reader.read("t")
    q, v = (linear(x, reader.read(f"{n}.w"), reader.find(f"{n}.b")) for n in "qv")
    assert _names(bound) == ["embed", "joined_linears", "concat"]
    np.testing.assert_allclose(
        ops.to_host(bound.run(_step(ops, 3))), np.concatenate([q, v], 1), rtol=1e-5, atol=1e-5
    )


def test_projections_with_and_without_bias_stay_apart() -> None:
    program = _program(_linear("q", 6, True), _linear("k", 3, False))

    bound = bind(program, EXACT[1].make(), _arrays(program))

    assert _names(bound) == ["embed", "linear", "linear", "concat"]


def test_the_listing_shows_what_each_step_covers(tmp_path: Any) -> None:
    model = Model(Oracle(FAMILIES["qwen3"], seed=3).save(tmp_path))

    listing = str(bind(lower(model.decoder), EXACT[1].make(), model.checkpoint.reader))

    assert listing.count("joined_linears:") == 3
    assert listing.count("gated_linears:") == 3
    assert "  inner.0 = gate(gate.0, up.0, act=silu)" in listing
