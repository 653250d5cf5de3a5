"""NVRTC without a GPU."""

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, get_ident

import pytest
from spaninfer_kernel_launch import (
    CompileError,
    CompilerMissing,
    FileCache,
    NotCompiled,
    Source,
    Variant,
    cached_only,
    compile_all,
    compile_variant,
    compiler,
    prepared_once,
    recording_kernels,
    toolchain,
)

KERNEL = """
extern "C" __global__ void doubled(const T* x, T* y, int n) {
  __shared__ float total[32];
  total[threadIdx.x % 32] = to_float(x[threadIdx.x]);
  __syncthreads();
  if (threadIdx.x < n) y[threadIdx.x] = from_float<T>(2 * total[threadIdx.x % 32]);
}
"""


@pytest.fixture
def variant(tmp_path, monkeypatch):
    """A kernel in a package made for the test."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cu12 or cu13")
    package = tmp_path / "made_for_the_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "doubled.cu").write_text(KERNEL)
    monkeypatch.syspath_prepend(tmp_path)
    compiler_source = Source("made_for_the_test", "doubled.cu", headers=("types.cuh",))
    yield Variant.of("doubled", compiler_source, {"T": "bfloat16"})
    importlib.invalidate_caches()


@pytest.fixture
def new_process():
    """Forgets what this process has compiled, as another one would know nothing of it."""
    return compiler._found.clear


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120"])
def test_it_compiles_for_every_architecture_and_reports_resources(variant, arch):
    compiled = compile_variant(variant, arch)

    assert compiled.cubin.startswith(b"\x7fELF")
    assert b"doubled" in compiled.cubin
    assert compiled.report.spill_bytes == 0
    assert compiled.report.registers > 0
    assert compiled.report.shared_bytes == 32 * 4


def test_a_mistake_is_reported_at_its_file_and_line(variant):
    wrong = replace(variant, macros=(("T", "quarter"),))

    with pytest.raises(CompileError) as error:
        compile_variant(wrong, "sm_80")

    assert 'made_for_the_test/doubled.cu(2): error: identifier "quarter"' in error.value.log
    assert "doubled[T=quarter] does not compile for sm_80" in str(error.value)


def test_the_second_time_nothing_is_compiled(variant, tmp_path, monkeypatch, new_process):
    cache = FileCache(tmp_path / "cache")
    first = compile_variant(variant, "sm_80", cache)
    monkeypatch.setattr(compiler, "_compile", None)

    second = compile_variant(variant, "sm_80", cache)
    new_process()
    third = compile_variant(variant, "sm_80", cache)

    assert third == second == first


@pytest.mark.skipif(sys.platform == "win32", reason="files are not locked there")
def test_threads_that_want_a_kernel_at_once_get_the_one_that_is_compiled(
    variant, tmp_path, monkeypatch
):
    cache, compiled, looked, all_looked = FileCache(tmp_path / "cache"), [], set(), Barrier(4)
    compile_one, find = compiler._compile, compiler._find

    def compile_and_note(*wanted):
        compiled.append(wanted)
        return compile_one(*wanted)

    def find_and_wait(request):
        found = find(request)
        if get_ident() not in looked:
            looked.add(get_ident())
            all_looked.wait(60)  # nobody has it yet
        return found

    monkeypatch.setattr(compiler, "_compile", compile_and_note)
    monkeypatch.setattr(compiler, "_find", find_and_wait)
    with ThreadPoolExecutor(4) as threads:
        jobs = [threads.submit(compile_variant, variant, "sm_80", cache) for _ in range(4)]
        kernels = [job.result() for job in jobs]

    assert len(compiled) == 1
    assert all(kernel == kernels[0] for kernel in kernels)


def test_a_damaged_entry_is_compiled_again(variant, tmp_path, new_process):
    cache = FileCache(tmp_path / "cache")
    first = compile_variant(variant, "sm_80", cache)
    [entry] = cache.folder.iterdir()
    entry.write_bytes(entry.read_bytes()[:-100])
    new_process()

    second = compile_variant(variant, "sm_80", cache)

    assert second.cubin == first.cubin
    assert cache.find(entry.stem) is not None


@pytest.mark.gpu
def test_a_kernel_compiled_once_more_beside_a_driver_still_tells_its_registers(variant, tmp_path):
    first = compile_variant(variant, "sm_80", FileCache(tmp_path / "cache"))

    second = compile_variant(variant, "sm_80", FileCache(tmp_path / "another"))

    assert second.report == first.report


def test_another_macro_another_architecture_another_compiler_is_another_entry(
    variant, tmp_path, monkeypatch, new_process
):
    cache = FileCache(tmp_path / "cache")
    half = replace(variant, macros=(("T", "half"),))

    compile_variant(variant, "sm_80", cache)
    compile_variant(variant, "sm_90a", cache)
    compile_variant(half, "sm_80", cache)
    new_process()
    monkeypatch.setattr(compiler, "toolchain_id", lambda: "another")
    compile_variant(variant, "sm_80", cache)

    assert len(list(cache.folder.iterdir())) == 4


def test_an_architecture_that_the_variant_is_not_for_is_refused(variant):
    hopper = replace(variant, architectures=("sm_90a",))

    with pytest.raises(CompileError, match="is for sm_90a, not for sm_80"):
        compile_variant(hopper, "sm_80")


def test_an_architecture_that_the_compiler_does_not_know_is_refused(variant):
    unknown = replace(variant, architectures=("sm_35",))

    with pytest.raises(CompileError, match="does not compile for sm_35"):
        compile_variant(unknown, "sm_35")


def test_a_folder_that_cannot_be_written_does_not_stop_compilation(variant, tmp_path):
    (tmp_path / "file").touch()

    with pytest.warns(RuntimeWarning, match="kept in memory"):
        compiled = compile_variant(variant, "sm_80", FileCache(tmp_path / "file"))

    assert compiled.report.spill_bytes == 0


def test_what_cannot_be_written_is_compiled_once_all_the_same(variant, tmp_path, monkeypatch):
    cache = FileCache(tmp_path / "file")
    cache.folder.touch()
    with pytest.warns(RuntimeWarning, match="kept in memory"):
        first = compile_variant(variant, "sm_80", cache)
    monkeypatch.setattr(compiler, "_compile", None)

    assert compile_variant(variant, "sm_80", cache) == first


def test_what_was_asked_for_while_gathering_is_compiled_side_by_side(
    variant, tmp_path, monkeypatch, new_process
):
    cache = FileCache(tmp_path / "cache")
    variants = [replace(variant, macros=(("T", name),)) for name in ("float", "half", "bfloat16")]
    with recording_kernels() as wanted:
        for each in (*variants, *variants):
            compile_variant(each, "sm_80", cache)
    told = []

    compile_all(wanted, lambda *news: told.append(news))

    assert told == [(done, 3) for done in range(4)]
    new_process()
    monkeypatch.setattr(compiler, "_compile", None)
    assert all(compile_variant(each, "sm_80", cache).report.registers for each in variants)


def test_what_the_cache_has_is_not_compiled_again(variant, tmp_path):
    cache = FileCache(tmp_path / "cache")
    compile_variant(variant, "sm_80", cache)
    with recording_kernels() as wanted:
        compile_variant(variant, "sm_80", cache)
    told = []

    compile_all(wanted, lambda *news: told.append(news))

    assert len(wanted) == 1
    assert told == []


def test_what_is_not_known_can_be_refused(variant, tmp_path):
    cache = FileCache(tmp_path / "cache")
    known = compile_variant(variant, "sm_80", cache)

    with cached_only():
        assert compile_variant(variant, "sm_80", cache) == known
        with pytest.raises(NotCompiled, match=r"doubled\[T=bfloat16\] has not been .* for sm_90a"):
            compile_variant(variant, "sm_90a", cache)
    assert compile_variant(variant, "sm_90a", cache).cubin


def test_a_mistake_is_told_of_all_the_same_where_many_are_compiled(variant, tmp_path):
    cache = FileCache(tmp_path / "cache")
    with recording_kernels() as wanted:
        compile_variant(variant, "sm_80", cache)
        compile_variant(replace(variant, macros=(("T", "quarter"),)), "sm_80", cache)

    with pytest.raises(CompileError, match=r"doubled\[T=quarter\] does not compile for sm_80"):
        compile_all(wanted)


def test_while_gathering_one_kernel_stands_in_for_all(variant, tmp_path):
    cache = FileCache(tmp_path / "cache")

    with recording_kernels():
        got = compile_variant(variant, "sm_80", cache)
        another = compile_variant(replace(variant, macros=(("T", "half"),)), "sm_80", cache)
        with ThreadPoolExecutor(1) as thread:
            elsewhere = thread.submit(compile_variant, variant, "sm_80").result()

    assert got == another
    assert got.is_empty
    assert got.report.registers > 0
    assert elsewhere.cubin == compile_variant(variant, "sm_80").cubin  # a thread gathers for itself


def test_missing_headers_are_named_with_the_extra(variant, monkeypatch):
    pathfinder = pytest.importorskip("cuda.pathfinder")
    monkeypatch.setattr(pathfinder, "find_nvidia_header_directory", lambda _: None)
    for known in (toolchain.include_folders, toolchain.toolchain_id):
        known.cache_clear()

    with pytest.raises(CompilerMissing, match=r"cuda_fp16.h is not installed.*\[cu13\]"):
        compile_variant(variant, "sm_80")


def test_what_is_prepared_once_is_kept_but_not_while_kernels_are_recorded():
    made = []

    @prepared_once(8)
    def prepare(size):
        made.append(size)
        return object()

    first = prepare(1)
    with recording_kernels():
        assert prepare(1) is not first
        assert prepare(1) is not prepare(1)

    assert prepare(1) is first
    assert made == [1] * 4
