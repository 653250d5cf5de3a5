"""A program bound to a backend: kernels in order, and slots for the values between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic

from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.step import A, Step


@dataclass(frozen=True, slots=True)
class BoundStep:
    """One kernel, the slots it reads and fills, and the slots that nobody reads after it."""

    name: str
    operations: tuple[Operation, ...]
    kernel: Callable[..., Any]  # (step, *inputs) -> one array, a tuple of arrays, or None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    parts: tuple[BoundStep, ...] = ()  # of a step that a backend made of several

    def __str__(self) -> str:
        """Return the operations that the step covers, under its name where that is a claim's."""
        if self.parts:
            return _indented(f"{self.name}:", "\n".join(map(str, self.parts)).splitlines())
        lines = [str(operation) for operation in self.operations]
        if self.name == self.operations[0].operator:
            return lines[0]
        return _indented(f"{self.name}:", lines)


@dataclass(frozen=True, slots=True)
class Steps(Generic[A]):
    """Bound steps in order of execution."""

    steps: tuple[BoundStep, ...]
    num_slots: int
    result: int

    def run(self, context: Step[A]) -> A:
        """Run every step; return the program's result."""
        values: list[Any] = [None] * self.num_slots
        for step in self.steps:
            made = step.kernel(context, *[values[slot] for slot in step.inputs])
            for slot in step.frees:
                values[slot] = None
            if len(step.outputs) == 1:
                values[step.outputs[0]] = made
            else:
                for slot, value in zip(step.outputs, made or (), strict=True):
                    values[slot] = value
        result: A = values[self.result]
        return result

    def __str__(self) -> str:
        """Return a numbered listing."""
        return "\n".join(f"{number:4d}  {step}" for number, step in enumerate(self.steps))


@dataclass(frozen=True, slots=True)
class Bound(Generic[A]):
    """A program bound to a backend: for steps of tokens alone, and for steps with media rows."""

    backend: str
    text: Steps[A]
    media: Steps[A]

    def run(self, context: Step[A]) -> A:
        """Return the logits [W V] of the rows that the step wants."""
        return (self.media if context.has_media else self.text).run(context)

    def __str__(self) -> str:
        """Return the listing of steps without media."""
        return str(self.text)


def _indented(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, *(f"    {line}" for line in lines)])
