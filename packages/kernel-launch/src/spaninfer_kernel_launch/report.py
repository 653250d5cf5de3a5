"""What the assembler says about a kernel: registers, spills, shared memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spaninfer_kernel_launch.errors import CompileError

_ENTRY = r"Compiling entry function '{entry}' for '\w+'(?P<about>.*?)(?=Compiling entry|\Z)"
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
    arrays that the compiler could not keep in registers. Shared memory asked for at launch is not
    in `shared_bytes`.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


def read_report(entry: str, log: str) -> CompileReport:
    """Return what the verbose log of ptxas says about the kernel `entry`."""
    found = re.search(_ENTRY.format(entry=re.escape(entry)), log, re.DOTALL)
    about = found["about"] if found else ""
    stack, registers = _STACK.search(about), _REGISTERS.search(about)
    if stack is None or registers is None:
        raise CompileError(f"the compiler's log says nothing about a kernel {entry}", log)
    shared = _SHARED.search(about)
    return CompileReport(
        registers=int(registers[1]),
        spill_bytes=int(stack["stores"]) + int(stack["loads"]),
        stack_bytes=int(stack["stack"]),
        shared_bytes=int(shared[1]) if shared else 0,
    )
