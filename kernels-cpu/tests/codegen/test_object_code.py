"""Object code: a round trip through a file, with every external call resolved."""

import json
from ctypes import CFUNCTYPE, c_int64

import pytest
from llvmlite import binding as llvm
from processes import printed_by
from spaninfer_kernels_cpu.codegen import object_code
from spaninfer_kernels_cpu.codegen.kernel import native_of
from spaninfer_kernels_cpu.sampling.sampler import sampling_kernel

MISSING = """
import json, os
from llvmlite import binding as llvm
from spaninfer_kernels_cpu.codegen import object_code
object_code.prepare()
called = json.loads(os.environ["CALLED"])
print([name for name in called if llvm.address_of_symbol(name) is None])
"""


def machine_code(number):
    """The object code of a function without arguments that returns a number."""
    text = f"define i64 @answer() {{ ret i64 {number} }}"
    module = llvm.parse_assembly(text)
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine().emit_object(module)


def test_functions_of_one_name_are_kept_apart():
    object_code.prepare()

    first, second = (object_code.link("answer", machine_code(number)) for number in (42, 43))

    assert [CFUNCTYPE(c_int64)(address)() for address in (first, second)] == [42, 43]


def test_a_file_holds_symbol_and_code():
    content = object_code.to_bytes("name", "symbol", b"code\nwith lines\0")

    assert object_code.from_bytes("name", content) == ("symbol", b"code\nwith lines\0")
    assert object_code.from_bytes("another name", content) is None


@pytest.mark.parametrize("place", range(0, 52, 3))
def test_no_byte_may_change(place):
    content = bytearray(object_code.to_bytes("name", "symbol", b"some object code"))
    content[min(place, len(content) - 1)] ^= 1

    assert object_code.from_bytes("name", bytes(content)) is None


def test_a_process_that_compiles_nothing_knows_all_that_kernels_call():
    """A name that LLVM does not find is address 0 in the code, and found by the call."""
    compiler = native_of(sampling_kernel())._compiler  # uses arrays and logarithms
    compiler.compile()
    declared = [one.name for one in compiler._library._final_module.functions if one.is_declaration]
    called = [name for name in declared if not name.startswith("llvm.")]
    assert {"NRT_MemInfo_call_dtor", "log1p"} <= set(called)

    assert printed_by(MISSING, {"CALLED": json.dumps(called)}) == "[]"
