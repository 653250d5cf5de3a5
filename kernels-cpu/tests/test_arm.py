"""Kernels for AArch64: their instructions, and their results under qemu.

Neither needs an Arm machine. The second needs qemu-user-static and binutils-aarch64-linux-gnu.
"""

import re
import shutil
import subprocess
from functools import cache

import numpy as np
import pytest
from arm_programs import PROGRAMS

TOOLS = ("qemu-aarch64-static", "aarch64-linux-gnu-as", "aarch64-linux-gnu-ld")
NEON = "+neon,+i8mm,+bf16"
SVE = NEON + ",+sve"
CPUS = {NEON: "neoverse-n1", SVE: "neoverse-v1"}
MARKS = {
    "int8": r"\busdot\b",
    "int4": r"\busdot\b",
    "bfloat16": r"\bbfdot\b",
    "float32": r"\bfmla\b",
    "w13a13": r"\bsmull2?\b",
}
ATTENTION = ("bfloat16 attention", "uint4 attention")
CASES = [
    *((name, NEON) for name in (*MARKS, *ATTENTION)),
    ("bfloat16", SVE),
    ("uint4 attention", SVE),
]

pytestmark = pytest.mark.slow


@cache
def made(name):
    """A program by its name."""
    return PROGRAMS[name]()


@cache
def assembly(name, features):
    """A program's assembly for a CPU with these features."""
    return made(name).assembly(CPUS[features], features)


@pytest.mark.parametrize("kind", MARKS)
def test_kernels_hold_the_instructions_of_neon(kind):
    code = assembly(kind, NEON)

    for mark in set(MARKS.values()):
        if mark != r"\bfmla\b":
            assert bool(re.search(mark, code)) == (mark == MARKS[kind]), mark
    assert re.search(MARKS[kind], code)
    assert not re.search(r"\bz\d+\.s\b", code)


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_multiplies_and_adds_vectors_of_neon(name):
    code = assembly(name, NEON)

    assert re.search(r"\bfmla\s+v\d+\.4s", code)
    assert not re.search(r"\bz\d+\.s\b", code)


@pytest.mark.parametrize("name", ["bfloat16", "uint4 attention"])
def test_loops_over_rows_are_of_scalable_vectors_where_there_are_any(name):
    assert re.search(r"\bz\d+\.s\b", assembly(name, SVE))


@pytest.mark.skipif(
    not all(map(shutil.which, TOOLS)),
    reason="apt-get install qemu-user-static binutils-aarch64-linux-gnu",
)
@pytest.mark.parametrize(("name", "features"), CASES)
def test_kernels_compute_their_definition_under_qemu(name, features, tmp_path):
    emulator, assembler, linker = TOOLS
    source, linked = tmp_path / "program.s", tmp_path / "program"
    source.write_text(assembly(name, features))

    run(assembler, "-march=armv8.2-a+i8mm+bf16+sve", "-o", f"{linked}.o", source)
    run(linker, "-static", "-o", linked, f"{linked}.o")
    printed = run(emulator, "-cpu", "max", linked)

    out = np.frombuffer(printed, np.float32)
    for right in made(name).truth:
        mine, out = out[: right.size].reshape(right.shape), out[right.size :]
        assert np.abs(mine - right).max() <= 1e-6 * np.abs(right).max()


def run(*command):
    return subprocess.run([*map(str, command)], capture_output=True, check=True).stdout
