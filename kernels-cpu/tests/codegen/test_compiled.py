"""Compiled functions on disk: kept per CPU, rebuilt when a source changes."""

import ctypes
import gc
import shutil
from pathlib import Path

import pytest
from numba import types
from processes import printed_by
from spaninfer_kernels_cpu import Format, attention_kernels, compile_all
from spaninfer_kernels_cpu.attention import attention_plan
from spaninfer_kernels_cpu.codegen import compiled
from spaninfer_kernels_cpu.codegen.kernel import native_of

PROGRAM = """
from spaninfer_kernels_cpu import Format, attention_kernels, compile_all
from spaninfer_kernels_cpu.codegen.compiled import NativeFunction
from spaninfer_kernels_cpu.codegen.kernel import native_of
from spaninfer_kernels_cpu.gemm.gemm_call import gemm_kernels
compiled = []
compile_one = NativeFunction._compile
NativeFunction._compile = lambda native: compiled.append(native) or compile_one(native)
compile_all([Format("int8", 32)])
used = [*attention_kernels("float32"), *gemm_kernels(Format("int8", 32))]
print(sum(native_of(kernel).was_loaded for kernel in used), len(compiled))
"""


ONE_KERNEL = """
from spaninfer_kernels_cpu.codegen.kernel import address_of, native_of
from spaninfer_kernels_cpu.elementwise.gather_call import _copy
address_of(_copy)
print(int(native_of(_copy).was_loaded))
"""


@pytest.mark.slow
def test_a_changed_source_and_another_cpu_are_noticed(tmp_path):
    """The source is one whose functions the kernel calls: Numba itself would not look at it."""
    package = tmp_path / "spaninfer_kernels_cpu"
    shutil.copytree(Path(compiled.__file__).parents[1], package)
    cache = tmp_path / "cache"
    environment = {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(cache)}

    def start(**more):
        """How many kernels were loaded, and the files that are kept."""
        printed = printed_by(ONE_KERNEL, environment | more)
        return printed, {path.name for path in cache.rglob("*.kernel")}

    loaded, first = start()
    assert (loaded, len(first)) == ("0", 1)
    assert start() == ("1", first)

    loaded, both = start(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    assert (loaded, len(both)) == ("0", 2)
    assert start() == ("1", both)

    with (package / "codegen" / "array_view.py").open("a") as source:
        source.write("# changed\n")
    loaded, fresh = start()
    assert (loaded, len(fresh)) == ("0", 1)
    assert not fresh & both
    assert start() == ("1", fresh)


def test_files_made_from_other_sources_are_deleted_and_those_of_these_kept(tmp_path):
    theirs, ours = (
        ["work-1.py311.0123.1.kernel", "play-1.py311.0123.1.kernel"],
        compiled.digest_of_sources(),
    )
    mine = [f"work-1.py311.{ours}.1.kernel", f"play-1.py311.{ours}.1.kernel"]
    for name in (*theirs, *mine, "work.cpython-311.pyc"):
        (tmp_path / name).touch()

    compiled.discard_others(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*mine, "work.cpython-311.pyc"]
    )


def test_the_files_of_a_kernel_are_named_by_the_sources_that_it_is_made_of():
    compile_all()
    kernel = attention_kernels("float32")[0]

    native_of(kernel)
    folder = compiled.cache_of_these_sources().writable()
    names = [path.name for path in folder.glob(f"*{compiled.SUFFIX}")]

    assert names
    assert all(compiled.digest_of_sources() in name for name in names)


@pytest.mark.slow
def test_the_second_process_compiles_nothing():
    """The first one is this, or whichever compiled a kernel before: all of them share a cache."""
    compile_all([Format("int8", 32)])

    assert printed_by(PROGRAM, {}) == "5 0"


@pytest.mark.parametrize(("before", "meanwhile"), [(700, compiled.YOUNG), (50_000, 50_000), (0, 0)])
def test_the_collector_looks_less_often_while_a_kernel_is_compiled(
    tmp_path, monkeypatch, before, meanwhile
):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    native = compiled.NativeFunction(lambda number: number, types.int64(types.int64))
    seen, compile_it, was = [], native._compiler.compile, gc.get_threshold()
    monkeypatch.setattr(
        native._compiler, "compile", lambda: seen.append(gc.get_threshold()) or compile_it()
    )
    gc.set_threshold(before, 5, 6)
    try:
        native.make_ready()
        behind = gc.get_threshold()
    finally:
        gc.set_threshold(*was)

    assert seen == [(meanwhile, 5, 6)]
    assert behind == (before, 5, 6)


def test_a_native_function_refuses_other_types():
    with pytest.raises(ctypes.ArgumentError):
        attention_plan._write_items(*["text"] * 12)
