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
CASES = [*((kind, NEON) for kind in MARKS), ("bfloat16", SVE)]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Source and right results of a program per kind and features: of all that were asked for."""
    made, folder = {}, tmp_path_factory.mktemp("arm")
    environment = os.environ | {"NUMBA_OPT": "0", "NUMBA_CACHE_DIR": str(folder)}
    maker = Path(__file__).with_name("arm.py")

    def made_once(kind, features):
        if (kind, features) not in made:
            paths = folder / f"{kind}{features}.s", folder / f"{kind}{features}.npy"
            run(sys.executable, maker, kind, features, *paths, env=environment)
            made[kind, features] = paths
        return made[kind, features]

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


def test_loops_over_rows_are_of_scalable_vectors_where_there_are_any(programs):
    source, _ = programs("bfloat16", SVE)

    assert re.search(r"\bz\d+\.s\b", source.read_text())


@pytest.mark.skipif(
    not all(map(shutil.which, TOOLS)),
    reason="apt-get install qemu-user-static binutils-aarch64-linux-gnu",
)
@pytest.mark.parametrize(("kind", "features"), CASES)
def test_kernels_compute_their_definition_under_qemu(programs, kind, features, tmp_path):
    emulator, assembler, linker = TOOLS
    source, truth = programs(kind, features)
    linked = tmp_path / "program"

    run(assembler, "-march=armv8.2-a+i8mm+bf16+sve", "-o", f"{linked}.o", source)
    run(linker, "-static", "-o", linked, f"{linked}.o")
    printed = run(emulator, "-cpu", "max", linked)

    expected = np.load(truth).reshape(2, -1, 64)
    out = np.frombuffer(printed, np.float32).reshape(2, -1, 64)[:, : expected.shape[1]]
    for mine, right in zip(out, expected, strict=True):  # the product, and the norm of its rows
        assert np.abs(mine - right).max() <= 1e-6 * np.abs(right).max()


def run(*command, env=None):
    return subprocess.run([*map(str, command)], env=env, capture_output=True, check=True).stdout
