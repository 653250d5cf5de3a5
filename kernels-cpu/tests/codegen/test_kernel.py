"""Kernels have names by which other processes find them."""

import json

import pytest
from spaninfer_kernels_cpu.attention.attend_call import attention_kernels
from spaninfer_kernels_cpu.codegen.elements import BFLOAT16
from spaninfer_kernels_cpu.codegen.kernel import kernel_of, name_of
from spaninfer_kernels_cpu.elementwise.formula_call import ADD, _over_columns, gate_formula
from spaninfer_kernels_cpu.elementwise.gather_call import _copy, _embed
from spaninfer_kernels_cpu.sampling.sampler import sampling_kernel

KERNELS = (
    _copy,
    sampling_kernel(),
    _embed(BFLOAT16),
    _over_columns(ADD),
    _over_columns(gate_formula("gelu")),  # a constant that holds another one
    *attention_kernels("uint4"),
)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_name_that_went_through_json_leads_to_the_kernel(kernel):
    assert kernel_of(json.loads(json.dumps(name_of(kernel)))) is kernel


def test_names_of_variants_differ():
    assert len({json.dumps(name_of(kernel)) for kernel in KERNELS}) == len(KERNELS)


def test_a_function_that_other_processes_cannot_import_has_no_name():
    def kernel(words, rows, task):
        pass

    assert name_of(kernel) is None
    assert name_of(test_names_of_variants_differ) is None
