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
SVE = NEON + ",+sve"
MARKS = {
    "int8": r"\busdot\b",
    "int4": r"\busdot\b",
    "bfloat16": r"\bbfdot\b",
    "float32": r"\bfmla\b",
}
ATTENTION = ("bfloat16 attention", "uint4 attention")
CASES = [
    *((name, NEON) for name in (*MARKS, *ATTENTION)),
    ("bfloat16", SVE),
    ("uint4 attention", SVE),
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Source and right results of a program per name and features: of all that were asked for."""
    made, folder = {}, tmp_path_factory.mktemp("arm")
    environment = os.environ | {"NUMBA_OPT": "0", "NUMBA_CACHE_DIR": str(folder)}
    maker = Path(__file__).with_name("arm.py")

    def made_once(name, features):
        if (name, features) not in made:
            paths = folder / f"{name}{features}.s", folder / f"{name}{features}.npz"
            run(sys.executable, maker, name, features, *paths, env=environment)
            made[name, features] = paths
        return made[name, features]

    return made_once


@pytest.mark.parametrize("kind", MARKS)
def test_kernels_hold_the_instructions_of_neon(programs, kind):
    source, _ = programs(kind, NEON)
    code = source.read_text()

    for mark in set(MARKS.values()):
        if mark != r"\bfmla\b":
            assert bool(re.search(mark, code)) == (mark == MARKS[kind]), mark
    assert re.search(MARKS[kind], code)
    assert not re.search(r"\bz\d+\.s\b", code)


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_multiplies_and_adds_vectors_of_neon(programs, name):
    source, _ = programs(name, NEON)
    code = source.read_text()

    assert re.search(r"\bfmla\s+v\d+\.4s", code)
    assert not re.search(r"\bz\d+\.s\b", code)


@pytest.mark.parametrize("name", ["bfloat16", "uint4 attention"])
def test_loops_over_rows_are_of_scalable_vectors_where_there_are_any(programs, name):
    source, _ = programs(name, SVE)

    assert re.search(r"\bz\d+\.s\b", source.read_text())


@pytest.mark.skipif(
    not all(map(shutil.which, TOOLS)),
    reason="apt-get install qemu-user-static binutils-aarch64-linux-gnu",
)
@pytest.mark.parametrize(("name", "features"), CASES)
def test_kernels_compute_their_definition_under_qemu(programs, name, features, tmp_path):
    emulator, assembler, linker = TOOLS
    source, truth = programs(name, features)
    linked = tmp_path / "program"

    run(assembler, "-march=armv8.2-a+i8mm+bf16+sve", "-o", f"{linked}.o", source)
    run(linker, "-static", "-o", linked, f"{linked}.o")
    printed = run(emulator, "-cpu", "max", linked)

    out = np.frombuffer(printed, np.float32)
    for right in np.load(truth).values():
        mine, out = out[: right.size].reshape(right.shape), out[right.size :]
        assert np.abs(mine - right).max() <= 1e-6 * np.abs(right).max()


def run(*command, env=None):
    return subprocess.run([*map(str, command)], env=env, capture_output=True, check=True).stdout
