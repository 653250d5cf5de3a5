"""The survey of a package made for the test."""

import sys

import pytest
from spaninfer_kernel_launch.compile_report import main, progress, variants_of

OPERATOR = """
from spaninfer_kernel_launch import Source, Variant
SOURCE = Source("surveyed", "operator/kernel.cu")
VARIANTS = tuple(
    Variant.of("first", SOURCE, {"N": size}, ("sm_80", "sm_90a")) for size in (SIZES)
)
"""
KERNEL = """
extern "C" __global__ void first(float* x) { x[threadIdx.x] = N; }
extern "C" __global__ void second(const int* at, float* x) {
  float held[N];
  for (int i = 0; i < N; ++i) held[i] = x[i];
  for (int i = 0; i < N; ++i) held[at[i]] += 1;
  for (int i = 0; i < N; ++i) x[i] = held[i];
}
"""


@pytest.fixture
def surveyed(tmp_path, monkeypatch):
    """Makes the package, with kernels of the given sizes."""

    def make(sizes):
        operator = tmp_path / "surveyed" / "operator"
        operator.mkdir(parents=True)
        (tmp_path / "surveyed" / "__init__.py").touch()
        (tmp_path / "surveyed" / "no_operator.py").touch()
        (operator / "__init__.py").write_text(OPERATOR.replace("SIZES", sizes))
        (operator / "kernel.cu").write_text(KERNEL)
        monkeypatch.syspath_prepend(tmp_path)
        for name in ("surveyed", "surveyed.operator"):
            monkeypatch.delitem(sys.modules, name, raising=False)

    return make


def test_operators_are_sub_packages_with_variants(surveyed):
    surveyed("1, 2")

    assert [str(variant) for variant in variants_of("surveyed")] == ["first[N=1]", "first[N=2]"]


def test_every_kernel_of_every_case_has_a_line(surveyed, capsys):
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cu12 or cu13")
    surveyed("1,")

    status = main(["surveyed"])

    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert status == 0
    assert printed.err.splitlines()[0] == "0 of 2 compilations"
    assert [line.split()[0] for line in lines[:-1]] == ["sm_80", "sm_80", "sm_90a", "sm_90a"]
    assert {line.partition("shared: ")[2] for line in lines[:-1]} == {
        "first of first[N=1]",
        "second of first[N=1]",
    }
    assert lines[-1] == "2 compilations, 0 defects"


def test_arrays_in_memory_and_refusals_of_the_compiler_are_defects(surveyed, capsys):
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cu12 or cu13")
    surveyed("64, -1")

    status = main(["surveyed", "--arch", "sm_90a"])

    *_, title, stack, refused = capsys.readouterr().out.split("\nsm_90a")
    assert status == 1
    assert "2 compilations, 2 defects" in title
    assert "256 stack" in stack
    assert "second of first[N=64]" in stack
    assert "first[N=-1] does not compile for sm_90a" in refused


@pytest.mark.parametrize(
    ("done", "spent_s", "said"),
    [
        (0, 7.0, "0 of 2,400 compilations"),
        (400, 60.0, "400 of 2,400 compilations, about 5 min 00 s left"),
        (2399, 2399.0, "2,399 of 2,400 compilations, about 0 min 01 s left"),
    ],
)
def test_a_report_says_how_many_are_done_and_how_long_the_rest_takes(done, spent_s, said):
    assert progress(done, 2400, spent_s) == said
