"""What was compiled is kept until a source changes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from spaninfer_kernels_cpu import attention, compile_all, compiled
from spaninfer_kernels_cpu.elements import FLOAT32

PROGRAM = """
from spaninfer_kernels_cpu import Format, attention, compile_all, products
from spaninfer_kernels_cpu.elements import FLOAT32
from spaninfer_kernels_cpu.recipe import recipes
from spaninfer_kernels_cpu.tiers import chosen
compile_all([Format("int8", 32)])
used = attention.compiled(FLOAT32), products._row_coder(), products._kernel(
    *recipes("int8", rounded=False, tier=chosen())
)
print(sum(sum(kernel.stats.cache_hits.values()) for kernel in used))
"""


def test_files_made_from_other_sources_are_deleted_and_those_of_these_kept(tmp_path):
    theirs, ours = (
        ["work-1.py311.0123.nbi", "work-1.py311.0123.1.nbc"],
        compiled.digest_of_sources(),
    )
    mine = [f"work-1.py311.{ours}.nbi", f"work-1.py311.{ours}.1.nbc"]
    for name in (*theirs, *mine, "work.cpython-311.pyc"):
        (tmp_path / name).touch()

    compiled.discard_others(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*mine, "work.cpython-311.pyc"]
    )


def test_the_files_of_a_kernel_are_named_by_the_sources_that_it_is_made_of():
    compile_all()
    kernel = attention.compiled(FLOAT32)

    names = [path.name for path in Path(kernel.stats.cache_path).glob("*.nb[ci]")]

    assert names
    assert all(compiled.digest_of_sources() in name for name in names)


@pytest.mark.slow
def test_the_second_process_compiles_nothing(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}

    hits = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]

    assert hits == ["0", "3"]


def test_a_kernel_refuses_other_types_instead_of_compiling_for_them():
    compile_all()
    kernel = attention.compiled(FLOAT32)

    with pytest.raises(TypeError, match="No matching definition"):
        kernel(*["text"] * len(kernel.signatures[0]))

    assert len(kernel.signatures) == 1
