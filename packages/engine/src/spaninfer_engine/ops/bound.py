"""A program bound to a backend: kernels in order, and slots for the values between them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.step import A, Step

T = TypeVar("T")


def drained(work: Generator[Any, None, T]) -> T:
    """Do work without its pauses; return what it returns."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


@dataclass(frozen=True, slots=True)
class BoundKernel:
    """One kernel, the slots it reads and fills, and the slots that are not read after it."""

    name: str
    operations: tuple[Operation, ...]
    kernel: Callable[..., Any]  # (step, *inputs) -> one array, a tuple of arrays, or None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...]
    parts: tuple[BoundKernel, ...] = ()  # of one that a backend made of several

    def __str__(self) -> str:
        """Return the operations that the kernel covers, under its name where that is a claim's."""
        if self.parts:
            return _indented(f"{self.name}:", "\n".join(map(str, self.parts)).splitlines())
        lines = [str(operation) for operation in self.operations]
        if self.name == self.operations[0].operator:
            return lines[0]
        return _indented(f"{self.name}:", lines)


@dataclass(frozen=True, slots=True)
class BoundProgram(Generic[A]):
    """Kernels in order of execution, and slots for the values between them."""

    kernels: tuple[BoundKernel, ...]
    num_slots: int
    result: int

    def run(self, context: Step[A]) -> A:
        """Run every kernel; return the program's result."""
        return drained(self.kernel_by_kernel(context))

    def kernel_by_kernel(self, context: Step[A]) -> Generator[int, None, A]:
        """Run every kernel, and say behind each how many are left; return the program's result."""
        values: list[Any] = [None] * self.num_slots
        yield from self._run(self.kernels, context, values)
        result: A = values[self.result]
        return result

    def begin(self, context: Step[A]) -> list[Any]:
        """Run the kernels that compute all tokens of a step; return the slots as they leave them.

        Those behind compute tokens with logits alone: only they read which tokens these are.
        """
        values: list[Any] = [None] * self.num_slots
        drained(self._run(self.kernels[: self._num_for_all], context, values))
        return values

    def finish(self, context: Step[A], values: list[Any]) -> A:
        """Run the other kernels, which change the slots; return the program's result."""
        drained(self._run(self.kernels[self._num_for_all :], context, values))
        result: A = values[self.result]
        return result

    @property
    def _num_for_all(self) -> int:
        is_last = (
            any(operation.operator == "gather_rows" for operation in each.operations)
            for each in self.kernels
        )
        return next((number for number, ends in enumerate(is_last) if ends), len(self.kernels))

    @staticmethod
    def _run(
        kernels: Sequence[BoundKernel], context: Step[A], values: list[Any]
    ) -> Generator[int, None, None]:
        for left, each in zip(range(len(kernels) - 1, -1, -1), kernels, strict=True):
            made = each.kernel(context, *[values[slot] for slot in each.inputs])
            for slot in each.frees:
                values[slot] = None
            if len(each.outputs) == 1:
                values[each.outputs[0]] = made
            else:
                for slot, value in zip(each.outputs, made or (), strict=True):
                    values[slot] = value
            del made
            yield left

    def __str__(self) -> str:
        """Return a numbered listing."""
        return "\n".join(f"{number:4d}  {each}" for number, each in enumerate(self.kernels))


class Result(Enum):
    """Kind of array that a program returns."""

    LOGITS = "logits [W V]"
    VECTORS = "vectors [R C]"  # one per slice
    FEATURES = "features [W C]"  # of media, for tokens that stand for them


@dataclass(frozen=True, slots=True)
class ProgramKey:
    """Name of one of a model's programs, and its kind of result."""

    name: str
    result: Result


TEXT = ProgramKey("text", Result.LOGITS)
MEDIA = ProgramKey("media", Result.LOGITS)  # some tokens get hidden states from elsewhere
POOL = ProgramKey("pool", Result.VECTORS)
TOWER = ProgramKey("tower", Result.FEATURES)
STEM = ProgramKey("stem", Result.FEATURES)  # what an audio tower computes frame by frame
EXTRA = ProgramKey("extra", Result.FEATURES)  # rows that stand between those of media


class Programs(Generic[A]):
    """The programs of a model on one backend, each bound when it is first needed."""

    def __init__(
        self, backend: str, bind: Mapping[ProgramKey, Callable[[], BoundProgram[A]]]
    ) -> None:
        self.backend = backend
        self._bind = dict(bind)
        self._bound: dict[ProgramKey, BoundProgram[A]] = {}

    @property
    def keys(self) -> frozenset[ProgramKey]:
        """The programs that the model has."""
        return frozenset(self._bind)

    def __getitem__(self, key: ProgramKey) -> BoundProgram[A]:
        """Return a program, bound now if it has not been."""
        if key not in self._bound:
            self._bound[key] = self._bind[key]()
        return self._bound[key]

    def run(self, context: Step[A]) -> A:
        """Return the logits [W V] of a step, or the vectors [R C] of a model that has no logits."""
        if POOL in self._bind:
            return self[POOL].run(context)
        return self[MEDIA if context.has_media else TEXT].run(context)

    def __str__(self) -> str:
        """Return the listings of the programs that are bound."""
        return "\n".join(map(str, self._bound.values()))


def _indented(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, *(f"    {line}" for line in lines)])
