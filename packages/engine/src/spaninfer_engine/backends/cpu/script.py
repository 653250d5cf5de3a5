"""Neighbouring steps of the CPU backend as one: calls that all threads run without Python.

Kernels that are `Recorded` are not called but written down, once for a number of rows: which kernel
reads and writes which memory. A step of the model then is one call of the team, a whole program
where every operation can be recorded. What cannot is called between scripts, on views of their
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from time import thread_time_ns
from typing import Any, NamedTuple, TypeAlias

from spaninfer_kernels_cpu import Compilers, Script, ThreadPool

from spaninfer_engine.backends.cpu.inputs import Inputs
from spaninfer_engine.backends.cpu.recorder import Floats, Recorder, Value
from spaninfer_engine.ops.bound import BoundKernel, BoundProgram
from spaninfer_engine.ops.step import Step
from spaninfer_engine.ops.table import FEWER_ROWS

Values: TypeAlias = tuple[Value, ...]
Write: TypeAlias = Callable[..., Values]  # (recorder, *input values) -> output values

MIN_ROWS = 16  # that memory is made for at first; then twice as many, whenever there are more

# A thread that was parked comes after 50 µs, and spins for a millisecond behind the script.
BRIEF_NS = 200_000


@dataclass(frozen=True, slots=True)
class Recorded:
    """A kernel that writes calls down; `chain` joins it with its neighbours to what can be run."""

    write: Write

    def __call__(self, _step: Step[Floats], *_inputs: Floats) -> None:
        """Nothing is computed here."""
        raise AssertionError("a recorded kernel is run by the script that it is part of")


class Workers(NamedTuple):
    """The workers of scripts: threads, the inputs of steps, and compilers of their kernels."""

    team: ThreadPool
    inputs: Inputs
    compilers: Compilers


def chain(program: BoundProgram[Floats], workers: Workers) -> BoundProgram[Floats]:
    """Return the steps with every run of recorded neighbours as one step."""
    logit_slots = _logit_slots(program)
    joined: list[BoundKernel] = []
    start = 0
    for is_recorded, group in groupby(
        program.kernels, key=lambda step: isinstance(step.kernel, Recorded)
    ):
        parts = tuple(group)
        stop = start + len(parts)
        if is_recorded:
            rest = program.kernels[stop:]
            script = partial(_Script, workers=workers)
            joined.append(_join(parts, rest, program.result, logit_slots[start], script))
        else:
            joined += parts
        start = stop
    return BoundProgram(tuple(joined), program.num_slots, program.result)


def _join(
    parts: Sequence[BoundKernel],
    rest: Sequence[BoundKernel],
    result: int,
    logit_slots: frozenset[int],
    make_script: Callable[..., _Script],
) -> BoundKernel:
    """Return one step for recorded neighbours: what it reads from outside, what others read."""
    written: set[int] = set()
    read: list[int] = []
    for part in parts:
        read += [slot for slot in part.inputs if slot not in written and slot not in read]
        written.update(part.outputs)
    results = tuple(sorted(written & _read_first(rest, result)))
    ends = frozenset(read) - _read_first(rest, result) - frozenset(results)
    script = make_script(
        tuple(parts), tuple(read), results, tuple(slot in logit_slots for slot in read)
    )
    operations = tuple(operation for part in parts for operation in part.operations)
    return BoundKernel(
        "script", operations, script, tuple(read), results, tuple(ends), tuple(parts)
    )


def _read_first(steps: Sequence[BoundKernel], result: int) -> set[int]:
    """Return the slots whose present values these steps read, the program's result among them."""
    read: set[int] = set()
    overwritten: set[int] = set()
    for step in steps:
        read |= set(step.inputs) - overwritten
        overwritten |= set(step.outputs)
    return read | ({result} - overwritten)


def _logit_slots(program: BoundProgram[Floats]) -> list[frozenset[int]]:
    """Return, in front of every step, the slots whose values have a row per logit."""
    logit_slots: frozenset[int] = frozenset()
    before = []
    for step in program.kernels:
        before.append(logit_slots)
        takes = any(operation.operator in FEWER_ROWS for operation in step.operations)
        outputs = frozenset(step.outputs)
        if takes or not logit_slots.isdisjoint(step.inputs):
            logit_slots |= outputs
        else:
            logit_slots -= outputs
    return before


class LastRun(NamedTuple):
    """Rows of a script's last run, and the CPU time of all threads that could take part."""

    rows: int
    ns: int


def is_worth_waking(last: LastRun | None, rows: int) -> bool:
    """Return True if parked threads are to be woken for that many rows: by the last run, one thread
    would need long.
    """
    return last is None or last.ns * rows > BRIEF_NS * last.rows


class _Script:
    """A kernel made of recorded ones. Its results lie in its memory until the next step."""

    def __init__(
        self,
        parts: tuple[BoundKernel, ...],
        read: tuple[int, ...],
        results: tuple[int, ...],
        per_logit: tuple[bool, ...],
        workers: Workers,
    ) -> None:
        self._parts, self._read, self._results = parts, read, results
        self._per_logit, self._workers = per_logit, workers
        self._linked: _Linked | None = None
        self._last_run: LastRun | None = None

    def __call__(self, step: Step[Floats], *inputs: Floats) -> Any:
        """Run the script for a step; return an array per result, or the only one."""
        rows, num_logits = step.num_tokens, len(step.logit_indices)
        linked = self._linked
        if linked is None or not linked.serves(step, rows, num_logits):
            linked = self._linked = self._link(step, inputs)
        for value, array in zip(linked.inputs, inputs, strict=True):
            value.view(len(array))[...] = array
        team = self._workers.team
        counts, begin = self._workers.inputs.counts(), thread_time_ns()
        wakes = is_worth_waking(self._last_run, rows)
        team.run(linked.script, counts, wakes=wakes)
        threads = team.num_threads if wakes else 1
        self._last_run = LastRun(rows, (thread_time_ns() - begin) * threads)
        made = tuple(
            value.view(num_logits if value.per_logit else rows) for value in linked.results
        )
        return made[0] if len(made) == 1 else made

    def _link(self, step: Step[Floats], inputs: Sequence[Floats]) -> _Linked:
        """Write the calls down, with memory for this step's rows and some more, and for as many
        as there ever were: 10 to 20 ms, which no step shall take again.
        """
        rows, num_logits = _capacity(step.num_tokens), _capacity(len(step.logit_indices))
        if self._linked is not None:
            rows, num_logits = (
                max(rows, self._linked.rows),
                max(num_logits, self._linked.num_logits),
            )
        caches = step.attention.caches
        rotated = [rotation.cos.shape[-1] for rotation in step.rotations]
        recorder = Recorder(self._workers.inputs, caches, rotated, rows=rows, num_logits=num_logits)
        values = {
            slot: recorder.new(*array.shape[1:], per_logit=of_logits)
            for slot, array, of_logits in zip(self._read, inputs, self._per_logit, strict=True)
        }
        given = tuple(values.values())
        for part in self._parts:
            assert isinstance(part.kernel, Recorded)
            made = part.kernel.write(recorder, *(values[slot] for slot in part.inputs))
            before = dict(values)
            for slot in part.frees:
                del values[slot]
            values.update(zip(part.outputs, made, strict=True))
            for value in _unused(before.values(), values.values()):
                if all(value.buffer is not one.buffer for one in given):
                    recorder.give_back(value.buffer, per_logit=value.per_logit)
        results = tuple(values[slot] for slot in self._results)
        self._workers.compilers.finish(call.kernel for call in recorder.calls)
        script = Script(recorder.calls)
        return _Linked(script, given, results, rows, num_logits, caches, recorder.buffers)


@dataclass(frozen=True, slots=True)
class _Linked:
    """A script, and the memory that its calls name."""

    script: Script
    inputs: tuple[Value, ...]
    results: tuple[Value, ...]
    rows: int
    num_logits: int
    caches: object
    kept: list[Floats]

    def serves(self, step: Step[Floats], rows: int, num_logits: int) -> bool:
        """Return True if there is memory for that many rows and keys and values have not moved."""
        return (
            rows <= self.rows
            and num_logits <= self.num_logits
            and step.attention.caches is self.caches
        )


def _capacity(count: int) -> int:
    return max(MIN_ROWS, 1 << (count - 1).bit_length())


def _unused(before: Any, after: Any) -> Iterator[Value]:
    """Yield a value for every buffer that was in use before and is not after."""
    held = {id(value.buffer) for value in after}
    for value in before:
        if id(value.buffer) not in held:
            held.add(id(value.buffer))
            yield value
