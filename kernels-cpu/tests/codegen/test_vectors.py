"""Availability of LLVM's intrinsics, checked when the package is imported."""

import subprocess
import sys

import pytest
from llvmlite import ir
from spaninfer_kernels_cpu.codegen import vectors


def test_this_llvm_knows_every_intrinsic():
    vectors.check_intrinsics()


def test_another_signature_is_an_import_error(monkeypatch):
    words = ir.FunctionType(vectors.I32X16, [vectors.I32X16] * 3)  # as LLVM 20 had it
    monkeypatch.setitem(vectors.INTRINSICS, "llvm.x86.avx512.vpdpbusd.512", words)

    with pytest.raises(ImportError, match=r"vpdpbusd\.512\(<16 x i32>, <16 x i32>, <16 x i32>\)"):
        vectors.check_intrinsics()


def test_an_unknown_name_is_an_import_error(monkeypatch):
    kind = vectors.INTRINSICS["llvm.fmuladd.v16f32"]
    monkeypatch.setitem(vectors.INTRINSICS, "llvm.x86.avx512.nothing", kind)

    with pytest.raises(ImportError, match="nothing"):
        vectors.check_intrinsics()


OTHER_LLVM = """
from llvmlite import binding
parse = binding.parse_assembly
binding.parse_assembly = lambda text: str(parse(text)).replace("<64 x i8>", "<16 x i32>")
import spaninfer_kernels_cpu
"""


def test_the_package_cannot_be_imported_with_an_llvm_of_other_signatures():
    ended = subprocess.run(
        [sys.executable, "-c", OTHER_LLVM], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("ImportError: LLVM ")
    assert "needs LLVM 22, which numba 0.68 brings" in ended.stderr
