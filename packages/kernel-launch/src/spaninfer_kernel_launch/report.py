"""The assembler's report on a kernel: registers, spills, shared memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spaninfer_kernel_launch.errors import CompileError

_ENTRY = re.compile(
    r"Compiling entry function '(?P<entry>\w+)' for '\w+'(?P<about>.*?)(?=Compiling entry|\Z)",
    re.DOTALL,
)
_STACK = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads"
)
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class CompileReport:
    """Resources of one kernel: registers per thread, bytes per thread, shared bytes per block.

    `spill_bytes` counts stores and loads of registers that did not fit; `stack_bytes` also holds
    arrays that the compiler could not keep in registers. Shared memory requested at launch is not
    in `shared_bytes`.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


def read_reports(log: str) -> dict[str, CompileReport]:
    """Return the reports in ptxas' verbose log, by entry point.

    Raises CompileError for a log that is not of that form.
    """
    return {
        found["entry"]: _report(found["entry"], found["about"], log)
        for found in _ENTRY.finditer(log)
    }


def _report(entry: str, about: str, log: str) -> CompileReport:
    stack, registers = _STACK.search(about), _REGISTERS.search(about)
    if stack is None or registers is None:
        raise CompileError(f"the compiler's log does not say what kernel {entry} takes", log)
    shared = _SHARED.search(about)
    return CompileReport(
        registers=int(registers[1]),
        spill_bytes=int(stack["stores"]) + int(stack["loads"]),
        stack_bytes=int(stack["stack"]),
        shared_bytes=int(shared[1]) if shared else 0,
    )
