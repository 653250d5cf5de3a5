"""Every variant of the cover compiles for every architecture it is for, without spilling."""

import re
from dataclasses import replace

import pytest
from spaninfer_kernel_launch import ARCHITECTURES, compile_variant
from spaninfer_kernels_cuda import norm, topk

VARIANTS = norm.VARIANTS + topk.VARIANTS
CASES = [(variant, arch) for variant in VARIANTS for arch in variant.architectures]


@pytest.mark.parametrize(("variant", "arch"), CASES, ids=str)
def test_a_variant_compiles_without_spilling(variant, arch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cu12 or cu13")

    compiled = compile_variant(variant, arch)

    for entry in re.findall(r"Compiling entry function '(\w+)'", compiled.log):
        report = replace(compiled, entry=entry).report
        assert (report.spill_bytes, report.stack_bytes) == (0, 0), entry
    assert compiled.report.registers > 0


def test_every_architecture_is_covered():
    assert {arch for _, arch in CASES} == set(ARCHITECTURES)
