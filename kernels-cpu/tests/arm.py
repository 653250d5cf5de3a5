"""Kernels for AArch64, made on any machine, and a program that runs them.

    NUMBA_OPT=0 python arm.py NAME FEATURES SOURCE TRUTH

NAME is one of `arm_programs`. SOURCE gets the assembly of a program that writes what the kernels
compute to its output, TRUTH what that ought to be.

Set NUMBA_CACHE_DIR too: what is compiled so is slow.

Numba compiles for the machine it runs on, so its unoptimised LLVM IR is taken and given to LLVM's
AArch64 backend, which optimises and emits it. Intrinsics of Arm are calls of made-up functions
until then, because the first backend does not know them.
"""

import re
import sys
from pathlib import Path

import numpy as np
from llvmlite import binding
from numba import types
from numba.core import cgutils
from spaninfer_kernels_cpu import dots, vectors

TRIPLE = "aarch64-unknown-linux-gnu"
known = vectors.call


def call(b, name, *arguments):
    """Stand for an intrinsic of Arm by a function that nothing calls on this machine."""
    if "aarch64" not in name:
        return known(b, name, *arguments)
    made_up = name.replace("llvm.", "later.")
    binding.add_symbol(made_up, 8)
    function = cgutils.get_or_insert_function(b.module, vectors.INTRINSICS[name], made_up)
    return b.call(function, arguments)


vectors.call = dots.call = call
from arm_programs import PROGRAMS  # noqa: E402, its kernels take `call` with them

WITHOUT_LIBRARIES = """
memset: mov x9, x0
1:      cbz x2, 2f
        strb w1, [x9], #1
        sub x2, x2, #1
        b 1b
2:      ret
NRT_MemInfo_call_dtor: brk #0
"""
"""What LLVM takes for granted, and what Numba calls for arrays that a function has made: none."""


def lowered(program, features):
    """A target machine of AArch64, the module of the kernel, optimised for it, and its name."""
    program.kernel.compile((types.int64,) * len(program.arguments))
    (text,) = program.kernel.inspect_llvm().values()
    text = re.sub(r"target (triple|datalayout) = .*", "", text).replace("later.", "llvm.")
    name = re.search(r'define [^@]*@"?(_ZN12arm_programs[^"(]*6kernel[^"(]*)', text)[1]
    module = binding.parse_assembly(text)
    for function in [*module.functions]:  # wrappers for Python, which call its interpreter
        if not function.is_declaration and function.name != name:
            function.linkage = "internal"  # and so left out
    machine = binding.Target.from_triple(TRIPLE).create_target_machine(
        cpu="neoverse-n1" if "sve" not in features else "neoverse-v1",
        features=features,
        opt=3,
        reloc="static",
    )
    module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    options = binding.create_pipeline_tuning_options(speed_level=3)
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine, module, name


def memory(program):
    """IR of what the kernel reads and writes."""
    lines = []
    for name, array in program.arrays.items():
        data = "".join(f"\\{byte:02X}" for byte in array.tobytes())
        lines.append(f'@{name} = constant [{array.nbytes} x i8] c"{data}", align 64')
    for name, size in {"out": program.out_bytes, **program.spare, "returned": 16}.items():
        lines.append(f"@{name} = global [{size} x i8] zeroinitializer, align 64")
    return "\n".join(lines)


def start(name, program):
    """Assembly that calls the kernel and writes `out`, without a C library."""
    arguments = ("returned", "returned", *program.arguments)  # Numba's own come first
    places = [f"ldr x{i}, ={value}" for i, value in enumerate(arguments[:8])]
    for i, value in enumerate(arguments[8:]):
        places += [f"ldr x9, ={value}", f"str x9, [sp, #{8 * i}]"]
    write = ["mov x0, #1", "ldr x1, =out", f"ldr x2, ={program.out_bytes}", "mov x8, #64", "svc #0"]
    end = ["mov x0, #0", "mov x8, #93", "svc #0"]
    code = ["sub sp, sp, #128", *places, f'bl "{name}"', *write, *end]
    return "\n".join([".text", WITHOUT_LIBRARIES, ".globl _start", "_start:", *code, ".ltorg", ""])


def main():
    name, features, source, right = sys.argv[1:]
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    program = PROGRAMS[name]()
    machine, module, kernel = lowered(program, features)
    data = binding.parse_assembly(memory(program))
    data.triple, data.data_layout = module.triple, module.data_layout
    module.link_in(data)
    Path(source).write_text(machine.emit_assembly(module) + start(kernel, program))
    np.savez(right, *program.truth)


if __name__ == "__main__":
    main()
