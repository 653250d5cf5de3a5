"""Kernels and claims that more than one backend has, built from its own operators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from spaninfer_engine.ops.operation import Operation, Use
from spaninfer_engine.ops.step import Step
from spaninfer_engine.ops.table import Claim, Kernel, Ops, Pack, reads_step


def single(operation: Operation, ops: Ops[Any], pack: Pack) -> Kernel:
    """Return the backend's own operator with this operation's weights and constants."""
    weights = {
        use.argument: pack([use], ops.layout(operation.operator, use.argument))
        for use in operation.weights
    }
    call = partial(getattr(ops, operation.operator), **weights, **dict(operation.constants))
    return call if reads_step(operation.operator) else lambda _step, *inputs: call(*inputs)


def joined_linears(ops: Ops[Any], count: int) -> Claim:
    """Claim `count` projections of one input as a single GEMM with the rows of all weights."""
    letters = [f"y{index}" for index in range(count)]
    pattern = tuple(f"{letter} = linear x" for letter in letters)

    def build(operations: Sequence[Operation], pack: Pack) -> Kernel:
        weights = joined(operations, ops, pack)
        sizes = tuple(use_of(operation, "weight").num_rows for operation in operations)

        def kernel(_step: Step[Any], x: Any) -> Any:
            return ops.split(ops.linear(x, **weights), sizes=sizes)

        return kernel

    return Claim("joined_linears", pattern, " ".join(letters), build, can_join)


def can_join(operations: Sequence[Operation]) -> bool:
    """Return True if all of these projections have a bias, or none has."""
    return len({len(operation.weights) for operation in operations}) == 1


def joined(
    operations: Sequence[Operation], ops: Ops[Any], pack: Pack, operator: str = "linear"
) -> dict[str, Any]:
    """Return weight, and bias if there is one, of projections below one another.

    They are laid out for `operator`, which may be a fusion of the backend's own.
    """
    return {
        use.argument: pack(
            [use_of(operation, use.argument) for operation in operations],
            ops.layout(operator, use.argument),
        )
        for use in operations[0].weights
    }


def use_of(operation: Operation, argument: str) -> Use:
    """Return the operation's use of a weight as `argument`."""
    return next(use for use in operation.weights if use.argument == argument)
