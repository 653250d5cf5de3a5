"""What was compiled is kept until a source changes."""

import os
import subprocess
import sys

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


def test_an_index_made_from_other_sources_is_discarded(tmp_path):
    index, machine_code = tmp_path / "work-1.py311.nbi", tmp_path / "work-1.py311.1.nbc"
    index.touch()
    machine_code.touch()
    (tmp_path / compiled.STAMP).write_text("of other sources")

    compiled.discard_older(tmp_path)

    assert not index.exists()
    assert (tmp_path / compiled.STAMP).read_text() == compiled._digest_of_sources()


def test_an_index_made_from_these_sources_is_kept(tmp_path):
    index = tmp_path / "work-1.py311.nbi"
    index.touch()
    (tmp_path / compiled.STAMP).write_text(compiled._digest_of_sources())

    compiled.discard_older(tmp_path)

    assert index.exists()


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
