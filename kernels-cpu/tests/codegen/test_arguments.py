"""Named arguments of kernels: a kernel reads what its call holds; anything else is refused."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from spaninfer_kernels_cpu import Arguments, Call, Float32, Indirect, Script, ThreadPool
from spaninfer_kernels_cpu.codegen.arguments import packed, struct_at, struct_bytes
from spaninfer_kernels_cpu.codegen.array_view import floats_at


@dataclass(frozen=True, slots=True)
class Inner(Arguments):
    first: int
    factor: Float32


@dataclass(frozen=True, slots=True)
class Everything(Arguments):
    out: int
    number: int
    truth: bool
    real: Float32
    array: Indirect
    inner: Inner
    last: int


@dataclass(frozen=True, slots=True)
class Other(Arguments):
    out: int


inner_at = struct_at(Inner)


def read_everything(arguments: Everything, tokens: int, task: int) -> None:  # noqa: ARG001
    """Write every field as float32."""
    out = floats_at(arguments.out, 8)
    out[0], out[1] = arguments.number, arguments.real
    out[2] = 1 if arguments.truth else 0
    out[3] = floats_at(arguments.array, 1)[0]
    out[4], out[5] = arguments.inner.first, arguments.inner.factor
    out[6], out[7] = arguments.last, inner_at(arguments.out + 8).factor


def without_struct(arguments, tokens, task):
    """A kernel that does not say what it takes."""


def everything(**changed: Any) -> Everything:
    fields = {"out": 0, "number": -3, "truth": True, "real": 0.25, "array": 0, "last": 2**24}
    return Everything(**{**fields, "inner": Inner(7, -1.5), **changed})


@pytest.mark.parametrize("truth", [True, False])
def test_a_kernel_reads_by_name_what_its_call_was_given(truth):
    out, array = np.full(8, np.nan, np.float32), np.array([42], np.float32)
    place = np.array([array.ctypes.data])
    arguments = everything(out=out.ctypes.data, truth=truth, array=place.ctypes.data)

    with ThreadPool(1) as thread_pool:
        script = Script([Call(read_everything, arguments)])
        thread_pool.run(script, [1])
        assert out[:7].tolist() == [-3, 0.25, truth, 42, 7, -1.5, 2**24]

        other = np.array([43], np.float32)
        place[0] = other.ctypes.data  # read anew by every run
        thread_pool.run(script, [1])

    assert out[3] == 43
    assert out[7] == 7  # a struct at any address: its second field is 16 bytes into `out`


def test_every_number_takes_eight_bytes_and_structs_lie_in_order():
    memory = packed(everything(out=5, array=6))

    assert len(memory) == struct_bytes(Everything) == 8 * 8
    words = np.frombuffer(memory, np.int64)
    assert words[[0, 1, 2, 4, 5, 7]].tolist() == [5, -3, 1, 6, 7, 2**24]
    assert np.frombuffer(memory, np.float32)[[6, 12]].tolist() == [0.25, -1.5]


@pytest.mark.parametrize("changed", [{"number": 1.5}, {"inner": Inner(0.5, 1.0)}, {"real": "1"}])
def test_a_number_of_another_kind_than_its_field_is_refused_by_name(changed):
    with pytest.raises(TypeError, match=r"Everything: .* number = "):
        packed(everything(**changed))


def test_a_call_with_the_arguments_of_another_kernel_is_refused():
    with pytest.raises(TypeError, match="read_everything takes Everything, got Other"):
        Script([Call(read_everything, Other(0))])


def test_a_kernel_that_is_annotated_with_no_struct_is_refused():
    with pytest.raises(TypeError, match="arguments is annotated with no struct"):
        Script([Call(without_struct, Other(0))])


def test_a_field_of_a_kind_that_no_kernel_reads_is_refused():
    @dataclass(frozen=True, slots=True)
    class Wrong(Arguments):
        text: str

    with pytest.raises(TypeError, match=r"Wrong.text is <class 'str'>"):
        packed(Wrong("a"))
