"""A product and a norm for AArch64, made on any machine, and a program that runs them.

    NUMBA_OPT=0 python arm.py KIND FEATURES SOURCE TRUTH

SOURCE gets the assembly of a program that writes what the kernels compute to its output, TRUTH what
that ought to be.

Set NUMBA_CACHE_DIR too: what is compiled so is slow.

Numba compiles for the machine it runs on, so its unoptimised LLVM IR is taken and given to LLVM's
AArch64 backend, which optimises and emits it. Intrinsics of Arm are calls of made-up functions
until then, because the first backend does not know them.
"""

import re
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from llvmlite import binding
from numba import njit, types
from numba.core import cgutils
from spaninfer_kernels_cpu import Format, dots, pack, unpack, vectors
from spaninfer_kernels_cpu.layout import PANEL
from spaninfer_kernels_cpu.norm_kernel import rms_norm
from spaninfer_kernels_cpu.products import rows_for
from spaninfer_kernels_cpu.recipe import recipes
from spaninfer_kernels_cpu.tiers import TIERS

TRIPLE = "aarch64-unknown-linux-gnu"
KINDS = ("float32", "bfloat16", "int8", "int4")
ROWS, CHANNELS, EPS = 5, 128, 1e-5
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
from spaninfer_kernels_cpu.products_kernel import fill_tile  # noqa: E402


def lowered(kind, features):
    """A target machine of AArch64, and the module of the kernels, optimised for it."""
    (tier,) = [tier for tier in TIERS if tier.name == "neon_i8mm"]
    _, many = recipes(kind, rounded=True, tier=tier)

    @njit(error_model="numpy")
    def kernel(weights, x, stride, last, groups, group_bytes, row_bytes, out, norm, normed):
        fill_tile(many, weights, x, stride, last, (groups, group_bytes, row_bytes), out)
        rms_norm(out, norm, normed, last + 1, PANEL, np.float32(EPS), False)

    kernel.compile((types.int64,) * 10)
    (text,) = kernel.inspect_llvm().values()
    text = re.sub(r"target (triple|datalayout) = .*", "", text).replace("later.", "llvm.")
    name = re.search(r'define [^@]*@"?(_ZN8__main__7lowered12_3clocals_3e6kernel[^"(]*)', text)[1]
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
    return machine, module, many, name


def problem(kind, recipe):
    """A packed weight of 64 outputs, rows as the kernel reads them, and what it is to compute."""
    rng = np.random.default_rng(0)
    format = Format(kind, 64) if kind in ("int8", "int4") else Format(kind)
    packed = pack(rng.standard_normal((PANEL, CHANNELS), np.float32), format)
    x = rng.standard_normal((ROWS, CHANNELS), np.float32)
    if format.has_codes:
        grouped = x.reshape(ROWS, 2, 64)
        scale = np.abs(grouped).max(-1, keepdims=True) / np.float32(127)
        truth = (np.rint(grouped / scale) * scale.astype(float)).reshape(ROWS, -1)
    else:
        x = x.astype(np.float32 if recipe.channel_bytes == 4 else ml_dtypes.bfloat16)
        truth = x.astype(float)
    rows = rows_for(x, packed.layout, recipe, workers=1)
    return packed, rows, truth @ unpack(packed).T.astype(float)


def memory(packed, rows, recipe, norm):
    """IR of what the kernels read and write."""

    def constant(name, array):
        data = "".join(f"\\{byte:02X}" for byte in array.tobytes())
        return f'@{name} = constant [{array.nbytes} x i8] c"{data}", align 64'

    size = 2 * recipe.rows * PANEL * 4
    return f"""
        {constant("weights", packed.panels)}
        {constant("x", rows)}
        {constant("norm", norm)}
        @out = global [{size} x i8] zeroinitializer, align 64
        @spare = global [16 x i8] zeroinitializer"""


def start(name, packed, rows, recipe):
    """Assembly that calls the kernel and writes its outputs, without a C library."""
    size = recipe.rows * PANEL * 4
    groups = packed.layout.groups
    sizes = (groups, packed.layout.group_bytes, CHANNELS * recipe.channel_bytes // groups)
    arguments = ("spare", "spare", "weights", "x", rows.shape[1], ROWS - 1, *sizes)
    arguments = (*arguments, "out", "norm", f"out + {size}")
    places = [f"ldr x{i}, ={value}" for i, value in enumerate(arguments[:8])]
    for i, value in enumerate(arguments[8:]):
        places += [f"ldr x9, ={value}", f"str x9, [sp, #{8 * i}]"]
    write = ["mov x0, #1", "ldr x1, =out", f"ldr x2, ={2 * size}", "mov x8, #64", "svc #0"]
    end = ["mov x0, #0", "mov x8, #93", "svc #0"]
    code = ["sub sp, sp, #32", *places, f'bl "{name}"', *write, *end]
    return "\n".join([".text", ".globl _start", "_start:", *code, ".ltorg", ""])


def main():
    kind, features, source, right = sys.argv[1:]
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine, module, recipe, name = lowered(kind, features)
    packed, rows, truth = problem(kind, recipe)
    norm = np.random.default_rng(1).standard_normal(PANEL).astype(np.float32)
    data = binding.parse_assembly(memory(packed, rows, recipe, norm))
    data.triple, data.data_layout = module.triple, module.data_layout
    module.link_in(data)
    Path(source).write_text(machine.emit_assembly(module) + start(name, packed, rows, recipe))
    sums = np.concatenate([truth, truth / np.sqrt((truth**2).mean(-1, keepdims=True) + EPS) * norm])
    np.save(right, sums)


if __name__ == "__main__":
    main()
