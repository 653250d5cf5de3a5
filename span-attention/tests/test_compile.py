"""Every variant of the cover compiles for every architecture it is for, without spilling."""

import pytest
from span_attention import append
from spaninfer_kernel_launch import ARCHITECTURES, compile_variant

VARIANTS = append.VARIANTS
CASES = [(variant, arch) for variant in VARIANTS for arch in variant.architectures]


@pytest.mark.parametrize(("variant", "arch"), CASES, ids=str)
def test_a_variant_compiles_without_spilling(variant, arch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cu12 or cu13")

    report = compile_variant(variant, arch).report

    assert report.spill_bytes == 0
    assert report.stack_bytes == 0


def test_every_architecture_is_covered():
    assert {arch for _, arch in CASES} == set(ARCHITECTURES)
