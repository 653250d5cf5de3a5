"""The kernels for AArch64: the instructions that they hold, and what they compute under qemu.

Neither needs an Arm machine. The second needs qemu-user-static and binutils-aarch64-linux-gnu.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TOOLS = ("qemu-aarch64-static", "aarch64-linux-gnu-as", "aarch64-linux-gnu-ld")
NEON = "+neon,+i8mm,+bf16"
MARKS = {
    "int8": r"\busdot\b",
    "int4": r"\busdot\b",
    "bfloat16": r"\bbfdot\b",
    "float32": r"\bfmla\b",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MARKS)
def test_kernels_hold_the_instructions_of_neon(kind, tmp_path):
    code = made(tmp_path, "kernel", kind, NEON)

    for mark in set(MARKS.values()):
        if mark != r"\bfmla\b":
            assert bool(re.search(mark, code)) == (mark == MARKS[kind]), mark
    assert re.search(MARKS[kind], code)
    assert not re.search(r"\bz\d+\.s\b", code)


@pytest.mark.slow
def test_loops_over_rows_are_of_scalable_vectors_where_there_are_any(tmp_path):
    assert re.search(r"\bz\d+\.s\b", made(tmp_path, "kernel", "int8", NEON + ",+sve"))


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(shutil.which, TOOLS)),
    reason="apt-get install qemu-user-static binutils-aarch64-linux-gnu",
)
@pytest.mark.parametrize("kind", MARKS)
def test_kernels_compute_their_definition_under_qemu(kind, tmp_path):
    emulator, assembler, linker = TOOLS
    source, linked, truth = (tmp_path / name for name in ("kernel.s", "kernel", "truth.npy"))
    source.write_text(made(tmp_path, "program", kind, NEON, str(truth)))

    run(assembler, "-march=armv8.2-a+i8mm+bf16", "-o", f"{source}.o", source)
    run(linker, "-static", "-o", linked, f"{source}.o")
    printed = run(emulator, "-cpu", "max", linked)

    expected = np.load(truth).reshape(2, -1, 64)
    out = np.frombuffer(printed, np.float32).reshape(2, -1, 64)[:, : expected.shape[1]]
    for mine, right in zip(out, expected, strict=True):  # the product, and the norm of its rows
        assert np.abs(mine - right).max() <= 1e-6 * np.abs(right).max()


def made(folder, *arguments):
    """What `arm.py` prints."""
    environment = os.environ | {"NUMBA_OPT": "0", "NUMBA_CACHE_DIR": str(folder)}
    program = str(Path(__file__).with_name("arm.py"))
    return run(sys.executable, program, *arguments, env=environment).decode()


def run(*command, env=None):
    return subprocess.run([*map(str, command)], env=env, capture_output=True, check=True).stdout
