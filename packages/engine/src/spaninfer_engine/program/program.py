"""A model as a flat list of operations: frozen data that can be printed, compared and bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spaninfer_engine.ops.bound import MEDIA, POOL, TEXT, ProgramKey, Result
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.table import OPTIONAL, reads_step
from spaninfer_engine.spec.attention_nodes import Rope
from spaninfer_engine.spec.nodes import CacheGroup


@dataclass(frozen=True, slots=True)
class Program:
    """Operations in order of execution. Every value is produced once, before its first use.

    `result` names an array of the kind `returns`. `ropes` are what the constant `rope` of rotations
    counts in, `groups` what the constant `group` of appends and attentions counts in.
    """

    operations: tuple[Operation, ...]
    result: str
    ropes: tuple[Rope, ...]
    groups: tuple[CacheGroup, ...]
    returns: Result = Result.LOGITS

    def __str__(self) -> str:
        """Return an operation per line."""
        return "\n".join(map(str, self.operations))


def variants(program: Program) -> Mapping[ProgramKey, Program]:
    """Return the programs of a model by their keys, that of most steps first."""
    if program.returns is Result.VECTORS:
        return {POOL: gathered_early(without_media(program))}
    return {TEXT: gathered_early(without_media(program)), MEDIA: gathered_early(program)}


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


def gathered_early(program: Program) -> Program:
    """Return the program that gathers the rows with logits as early as it can.

    Behind the last attention, operators compute row by row: rows without logits need not go through
    the last layer's output projection and MLP. Of a long prompt those are all but one, so a model
    of 28 layers saves a thirty-second of its matmuls, and an encoder of 12 layers whose vectors are
    hidden states of one token a sixteenth.
    """
    operations = program.operations
    at = next((n for n, item in enumerate(operations) if item.operator == "gather_rows"), None)
    if at is None:
        return program
    late = _late(operations, at)
    early = [item for n, item in enumerate(operations) if n not in late and n != at]
    behind = [operations[n] for n in sorted(late)]
    taking, made = operations[at], {name for item in behind for name in item.outputs}
    (whole,), (rows,) = taking.inputs, taking.outputs
    read = [name for item in behind for name in item.inputs] + [program.result]
    borders = dict.fromkeys(whole if name == rows else name for name in read)
    taken = {name: f"{name}.gathered" for name in borders if name not in made}
    takes = [replace(taking, inputs=(name,), outputs=(part,)) for name, part in taken.items()]
    renamed = {**taken, rows: taken.get(whole, whole)}
    behind = [
        replace(item, inputs=tuple(renamed.get(name, name) for name in item.inputs))
        for item in behind
    ]
    result = renamed.get(program.result, program.result)
    return replace(program, operations=(*early, *takes, *behind), result=result)


def _late(operations: Sequence[Operation], at: int) -> set[int]:
    """Return the operations that need compute rows with logits only, which operation number
    `at` takes: those behind it, and those in front that compute row by row for such ones alone.
    """
    readers: dict[str, set[int]] = defaultdict(set)
    for number, item in enumerate(operations):
        for name in item.inputs:
            readers[name].add(number)
    late = set(range(at, len(operations)))
    for number in reversed(range(at)):
        item = operations[number]
        reading = set().union(*(readers[name] for name in item.outputs))
        if reading and reading <= late and not reads_step(item.operator):
            late.add(number)
    return late - {at}
