"""Names of kernels, by which other processes find them."""

import json
from dataclasses import dataclass

import pytest
from code_forms import FORMS
from spaninfer_kernels_cpu import Format
from spaninfer_kernels_cpu.attention.attend_call import attention_kernels
from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.elements import BFLOAT16
from spaninfer_kernels_cpu.codegen.kernel import kernel_of, name_of
from spaninfer_kernels_cpu.elementwise.formula_call import ADD, _over_columns, gate_formula
from spaninfer_kernels_cpu.elementwise.gather_call import _copy, _embed
from spaninfer_kernels_cpu.gemm.gemm_call import gemm_kernels
from spaninfer_kernels_cpu.runtime.compilers import seconds_of
from spaninfer_kernels_cpu.sampling.sampler import sampling_kernel

KERNELS = (
    _copy,
    sampling_kernel(),
    _embed(BFLOAT16),
    _over_columns(ADD),
    _over_columns(gate_formula("gelu")),  # a constant that holds another one
    *attention_kernels("uint4"),
    gemm_kernels(Format("int8", 32))[1],
    gemm_kernels(FORMS["Q6_K"])[1],  # inner scales
    gemm_kernels(FORMS["IQ4_XS"])[1],  # and a table
)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_name_that_went_through_json_leads_to_the_kernel(kernel):
    assert kernel_of(json.loads(json.dumps(name_of(kernel)))) is kernel


def test_kernels_that_compile_for_long_begin_early():
    attend, *_ = attention_kernels("float32")
    _, gemm = gemm_kernels(Format("int8", 32))

    assert seconds_of(attend) > seconds_of(sampling_kernel()) > seconds_of(gemm) > seconds_of(_copy)


def test_names_of_variants_differ():
    assert len({json.dumps(name_of(kernel)) for kernel in KERNELS}) == len(KERNELS)


@dataclass(frozen=True)
class Odd(Constant):
    """A constant that holds what no name says."""

    thing: frozenset


def test_what_no_name_says_is_refused_before_another_process_waits_for_it():
    with pytest.raises(TypeError, match="no constant of a kernel"):
        name_of(_embed(Odd(frozenset())))


def test_a_function_that_other_processes_cannot_import_has_no_name():
    def kernel(words, rows, task):
        pass

    assert name_of(kernel) is None
    assert name_of(test_names_of_variants_differ) is None
