"""Rows that go over a panel once, with sums in memory, beside those that keep them in registers."""

from dataclasses import replace

import numpy as np
import pytest
from code_forms import FORMS, made
from spaninfer_kernels_cpu import Format, MicroKernels, pack, pack_codes
from spaninfer_kernels_cpu.codegen.isa_level import active_level
from spaninfer_kernels_cpu.gemm.gemm_call import Gemm
from spaninfer_kernels_cpu.runtime.call import Matrix, Script
from spaninfer_kernels_cpu.runtime.thread_pool import shared_thread_pool

CODES = ("Q4_K", pytest.param("Q6_K", marks=pytest.mark.slow))


def products(weight, x, micro):
    gemm, out = Gemm(weight, micro=micro), np.full((len(x), weight.layout.outputs), np.nan)
    out = out.astype(np.float32)
    scratch = np.empty(len(x) * gemm.scratch_bytes + 1, np.uint8)
    places = {"out": Matrix.of(out), "scratch": scratch.ctypes.data}
    shared_thread_pool().run(Script(gemm.calls(Matrix.of(x), **places)), [len(x)])
    return out


def scaling_floats(micro):
    """The same micro-kernels, but none that scales in integers: no core with such is paced."""
    if not micro.one.has_whole_scales:
        return micro
    names = "one", "small", "medium", "many"
    return replace(
        micro, **{name: replace(getattr(micro, name), isa_path="madd") for name in names}
    )


def check(weight, ahead):
    """Five to eight rows of a weight have the bits of each alone."""
    level, layout = active_level(), weight.layout
    micro = scaling_floats(MicroKernels.of(layout.format, rounded=False, level=level))
    paced = replace(micro.small, rows=8, blocks=4, at_once=2, ahead=ahead)
    x = np.random.default_rng(0).standard_normal((8, layout.channels), np.float32)
    alone = np.concatenate([products(weight, row[None], micro) for row in x])

    for num_rows in (5, 8):
        out = products(weight, x[:num_rows], replace(micro, medium=paced))

        np.testing.assert_array_equal(out, alone[:num_rows])


@pytest.mark.parametrize("name", CODES)
def test_rows_of_codes_have_the_same_bits_as_alone(name):
    weight = pack_codes([made(name, 1, 200, 768)], FORMS[name])

    check(weight, ahead=0)


def test_rows_of_numbers_have_the_same_bits_as_alone():
    """70 channels are a part of what goes by at once, and one step that is half full."""
    numbers = np.random.default_rng(1).standard_normal((200, 141), np.float32)

    check(pack(numbers, Format("bfloat16")), ahead=4096)
