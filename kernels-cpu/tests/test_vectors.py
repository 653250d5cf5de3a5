"""LLVM is asked whether it knows the intrinsics before one is compiled."""

import pytest
from llvmlite import ir
from spaninfer_kernels_cpu import vectors


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
