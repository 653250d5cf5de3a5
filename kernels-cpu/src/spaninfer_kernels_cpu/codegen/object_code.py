"""Machine code of one function as the bytes of a file, and its way back into memory.

A file holds a SHA-256 digest, the symbol of the function, and the object code that LLVM made. The
digest is over what follows it and the file's own name: content that was damaged, cut short or
written for another name is not handed to the linker. Whoever may write the file can run anything,
as with any library, so `kernel_cache` reads only what this user or root has written.

Each object is linked by an engine of its own. Numba numbers functions of one name in the order in
which a process compiles them, so two objects from two processes may define the same symbol.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from typing import Any

from llvmlite import binding as llvm
from numba.core import config
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys

_llvm: Any = llvm
_numba: Any = config
_runtime: Any = rtsys

_DIGEST_BYTES = 32

_ENGINES: list[Any] = []  # they own the memory of the code


def to_bytes(name: str, symbol: str, code: bytes) -> bytes:
    """Return the content of the file `name`."""
    body = f"{symbol}\n".encode() + code
    return _digest(name, body) + body


def from_bytes(name: str, content: bytes) -> tuple[str, bytes] | None:
    """Return symbol and object code of the file `name`; None unless it is whole, and that file."""
    digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if _digest(name, body) != digest:
        return None
    symbol, _, code = body.partition(b"\n")
    return symbol.decode(), code


def _digest(name: str, body: bytes) -> bytes:
    return sha256(name.encode() + b"\0" + body).digest()


def link(symbol: str, code: bytes) -> int:
    """Load object code into memory, for good; return the address of the function `symbol`."""
    prepare()
    triple = _llvm.get_process_triple()
    module = _llvm.parse_assembly("")
    module.triple = triple
    machine = _llvm.Target.from_triple(triple).create_target_machine()
    engine = _llvm.create_mcjit_compiler(
        module, machine, use_lmm=_numba.USE_LLVMLITE_MEMORY_MANAGER
    )
    engine.add_object_file(_llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _ENGINES.append(engine)
    address: int = engine.get_function_address(symbol)
    return address


@cache
def prepare() -> None:
    """Make LLVM ready, and known to it what machine code may call: Numba's helpers and runtime.

    What it does not find is address 0 in the code, found by the call.
    """
    _runtime.initialize(cpu_target.target_context)
