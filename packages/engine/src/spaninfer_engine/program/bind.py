"""The binder: programs become kernels with their weights, and slots for values.

A backend claims the sequences that it has a fused form for and takes the rest one by one. Weights
are packed per use, in the layout that the backend wants for it; equal uses share one packed copy.
A value lives in a slot from the step that makes it to the last one that reads it, so memory does
not grow with the number of layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeAlias

from spaninfer_engine.ops.bound import BoundKernel, BoundProgram, ProgramKey, Programs
from spaninfer_engine.ops.fuse import single
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.step import A
from spaninfer_engine.ops.table import Claim, Kernel, Ops, Pack
from spaninfer_engine.program.packer import Packer, Reader
from spaninfer_engine.program.program import Program, variants


def bind(
    program: Program,
    ops: Ops[A],
    reader: Reader,
    progress: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
) -> Programs[A]:
    """Bind a program to a backend; read and pack every weight on the way.

    `progress` is called with the operations bound so far and all there are.
    """
    return bind_packed(program, ops, Packer(ops, reader), progress)


def bind_packed(
    program: Program,
    ops: Ops[A],
    pack: Pack,
    progress: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
) -> Programs[A]:
    """Bind a program to a backend, with weights as `pack` gives them."""
    needed = variants(program)
    programs = Programs(
        ops.name,
        {key: partial(_bind, one, ops, pack, progress) for key, one in needed.items()},
    )
    programs[next(iter(needed))]  # while the weights can be read
    return programs


def bind_all(programs: Mapping[ProgramKey, Program], ops: Ops[A], pack: Pack) -> Programs[A]:
    """Bind programs by their keys, all now."""
    bound = Programs(ops.name, {key: partial(_bind, one, ops, pack, _untold)
                                for key, one in programs.items()})  # fmt: skip
    for key in programs:
        bound[key]
    return bound


def _untold(done: int, total: int) -> None:
    """Report nothing."""


def _bind(
    program: Program, ops: Ops[A], pack: Pack, progress: Callable[[int, int], None]
) -> BoundProgram[A]:
    slots = _Slots(program)
    steps, done, total = [], 0, len(program.operations)
    for match in _matches(program, ops):
        kernel = (
            single(match.operations[0], ops, pack)
            if match.claim is None
            else match.claim.build(match.operations, pack)
        )
        steps.append(slots.bind(match, kernel))
        done += len(match.operations)
        progress(done, total)
    return ops.chain(BoundProgram(tuple(steps), slots.num_slots, slots.slot_of(program.result)))


# ---- matching ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Match:
    """Neighbouring operations that become one step, and the values that pass its border."""

    claim: Claim | None
    operations: tuple[Operation, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def name(self) -> str:
        """The claim's name, or the operator's."""
        return self.operations[0].operator if self.claim is None else self.claim.name


def _matches(program: Program, ops: Ops[A]) -> Iterator[Match]:
    """Cut the program into claimed sequences and single operations."""
    readers = Counter(name for operation in program.operations for name in operation.inputs)
    readers[program.result] += 1
    start, longest = 0, max((len(claim.pattern) for claim in ops.claims), default=1)
    while start < len(program.operations):
        rest = program.operations[start : start + longest]
        found = (find_match(claim, rest, readers) for claim in ops.claims)
        match = next((match for match in found if match is not None), None)
        if match is None:
            match = Match(None, rest[:1], rest[0].inputs, rest[0].outputs)
        yield match
        start += len(match.operations)
        for operation in match.operations:
            readers.subtract(operation.inputs)


def find_match(
    claim: Claim, operations: Sequence[Operation], readers: Counter[str]
) -> Match | None:
    """Return the claim's match at the head of `operations`; None if they are something else.

    `readers` counts who reads each value from there on: one that the claim keeps to itself, or
    overwrites, must have no reader outside.
    """
    lines = _parsed(claim.pattern)
    taken = tuple(operations[: len(lines)])
    if [operator for _, operator, _ in lines] != [operation.operator for operation in taken]:
        return None
    values: dict[str, str] = {}  # letter -> value
    made: list[str] = []  # letters that the sequence produces
    for (outputs, _, inputs), operation in zip(lines, taken, strict=True):
        if not _unify(inputs, operation.inputs, values):
            return None
        if len(outputs) != len(operation.outputs):
            return None
        values.update(zip(outputs, operation.outputs, strict=True))
        made += outputs
    inside = Counter(name for operation in taken for name in operation.inputs)
    results = claim.results.split()
    own = [letter for letter in made if letter not in results] + claim.overwrites.split()
    if any(readers[values[x]] != inside[values[x]] for x in own) or not claim.accepts(taken):
        return None
    outside = tuple(value for letter, value in values.items() if letter not in made)
    return Match(claim, taken, outside, tuple(values[letter] for letter in results))


Line: TypeAlias = tuple[tuple[str, ...], str, tuple[str, ...]]
"""Of a pattern: outputs, operator, inputs."""


@cache
def _parsed(pattern: tuple[str, ...]) -> tuple[Line, ...]:
    """Take the lines of a pattern apart, "h = add x y"."""
    return tuple(map(_parse, pattern))


def _parse(line: str) -> Line:
    left, equals, right = line.partition("=")
    operator, *inputs = (right if equals else left).split()
    return tuple(left.split()) if equals else (), operator, tuple(inputs)


def _unify(letters: Sequence[str], names: Sequence[str], values: dict[str, str]) -> bool:
    """Give each letter its value; False if one already has another."""
    return len(letters) == len(names) and all(
        values.setdefault(letter, name) == name for letter, name in zip(letters, names, strict=True)
    )


# ---- slots ---------------------------------------------------------------------------------------


class _Slots:
    """Assignment of values to slots; a slot is reused after its value's last reader."""

    def __init__(self, program: Program) -> None:
        self.num_slots = 0
        self._free: list[int] = []
        self._slot: dict[str, int] = {}
        self._unread = Counter(name for item in program.operations for name in item.inputs)
        self._unread[program.result] += 1

    def slot_of(self, name: str) -> int:
        """Return where a value lies."""
        return self._slot[name]

    def bind(self, match: Match, kernel: Kernel) -> BoundKernel:
        """Return the step, after giving its outputs slots and taking back those it read last."""
        inputs = tuple(self._slot[name] for name in match.inputs)
        for operation in match.operations:
            self._unread.subtract(operation.inputs)
        dead = [name for name in dict.fromkeys(match.inputs) if not self._unread[name]]
        frees = tuple(self._slot[name] for name in dead)
        self._free += frees
        outputs = tuple(self._take(name) for name in match.outputs)
        return BoundKernel(match.name, match.operations, kernel, inputs, outputs, frees)

    def _take(self, name: str) -> int:
        if not self._free:
            self._free.append(self.num_slots)
            self.num_slots += 1
        self._slot[name] = self._free.pop()
        return self._slot[name]
