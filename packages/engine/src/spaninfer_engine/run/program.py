"""A model as a flat list of operations: frozen data that can be printed, compared and bound."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.table import OPTIONAL
from spaninfer_engine.spec.nodes import CacheGroup, Rope


@dataclass(frozen=True, slots=True)
class Program:
    """Operations in order of execution. Every value is produced once, before its first use.

    `result` names the logits [W V]. `ropes` are what the constant `rope` of rotations counts in,
    `groups` what the constant `group` of appends and attentions counts in.
    """

    operations: tuple[Operation, ...]
    result: str
    ropes: tuple[Rope, ...]
    groups: tuple[CacheGroup, ...]

    def __str__(self) -> str:
        """Return an operation per line."""
        return "\n".join(map(str, self.operations))


def without_media(program: Program) -> Program:
    """Return the program of steps without media: optional operations left out."""
    same: dict[str, str] = {}
    kept = []
    for operation in program.operations:
        inputs = tuple(same.get(name, name) for name in operation.inputs)
        if operation.operator in OPTIONAL:
            same[operation.outputs[0]] = inputs[0]
        else:
            kept.append(replace(operation, inputs=inputs))
    result = same.get(program.result, program.result)
    return replace(program, operations=tuple(kept), result=result)
