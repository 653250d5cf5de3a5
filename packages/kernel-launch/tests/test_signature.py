"""Signatures: agreement between Python's declaration and the CUDA source."""

from typing import NamedTuple

import pytest
from spaninfer_kernel_launch import (
    Float32,
    Gpu,
    Int32,
    Int64,
    NoArguments,
    Pointer,
    Signature,
    SignatureError,
    TensorMap,
    UInt32,
    Variant,
    compile_variant,
    load,
)
from spaninfer_kernel_launch.signature import parameters_of


class Arguments(NamedTuple):
    """One of each type."""

    out: Pointer
    map: TensorMap
    count: Int32
    stride: Int64


class Constants(NamedTuple):
    """The rest."""

    bytes: UInt32
    eps: Float32


EVERY = Signature("every", Arguments, Constants)
SOURCE = """
// extern "C" __global__ void every(int) is what a comment may say.
extern "C" __global__ void __launch_bounds__(THREADS, KEY_SIZE > 256 ? 1 : f(0))
    every(T* const* __restrict__ out, const __grid_constant__ TensorMap map,
          int count, const long long stride,  // between rows
          unsigned bytes, float eps) {
  helper(out, 1);
}
extern "C" __global__ void nothing() {}
"""


def test_parameters_of_every_type_agree_by_name_and_type():
    EVERY.check(SOURCE)
    Signature("nothing", NoArguments).check(SOURCE)


@pytest.mark.parametrize(
    ("there", "here", "message"),
    [
        (
            "int count",
            "long long count",
            r"argument 3: the CUDA source has `long long count`, but Arguments \+ Constants "
            "declares `count: int32`",
        ),
        ("int count", "int number", "argument 3: .*`int number`.*`count: int32`"),
        ("int count", "unsigned count", "argument 3: .*`unsigned count`.*`count: int32`"),
        ("int count", "int* count", r"argument 3: .*`int\* count`.*`count: int32`"),
        ("float eps", "double eps", "argument 6: .*`double eps`.*`eps: float32`"),
        (", float eps", "", "argument 6: .*has no such argument, .*`eps: float32`"),
        ("float eps", "float eps, int more", "argument 7: .*`int more`, .*no such argument"),
        ("TensorMap map", "TensorMap* map", "argument 2: .*`map: tensor map`"),
        ("unsigned bytes, float eps", "float eps, unsigned bytes", "argument 5: .*`float eps`"),
    ],
)
def test_a_difference_names_kernel_argument_and_both_types(there, here, message):
    assert there in SOURCE

    with pytest.raises(SignatureError, match=f"kernel every, {message}"):
        EVERY.check(SOURCE.replace(there, here))


def test_a_kernel_that_the_source_lacks_or_has_twice_is_refused():
    with pytest.raises(SignatureError, match="kernel absent is declared 0 times"):
        Signature("absent", NoArguments).check(SOURCE)
    with pytest.raises(SignatureError, match="kernel nothing is declared 2 times"):
        Signature("nothing", NoArguments).check(SOURCE + SOURCE)


def test_a_field_of_a_type_that_kernels_do_not_take_is_refused():
    class Wrong(NamedTuple):
        """A field without a type of ours."""

        size: int

    with pytest.raises(SignatureError, match=r"Wrong\.size is <class 'int'>; kernels take Pointer"):
        parameters_of(Wrong)


class Fill(NamedTuple):
    """What the kernel below does not take."""

    n: Int32
    out: Pointer


FILL = Signature("fill", Fill)
WRONG = 'extern "C" __global__ void fill(long long n, float* out) { if (n) *out = 1; }'
RIGHT = 'extern "C" __global__ void fill(int n, float* out) { if (n) *out = 1; }'


def test_a_wrong_kernel_does_not_compile(source_of):
    """Nor does it come from a cache: it is checked before, and without a compiler."""
    variant = Variant.of("fill", source_of(WRONG, kernels=(FILL,)), {})

    for _ in range(2):
        with pytest.raises(
            SignatureError,
            match="kernel fill, argument 1: the CUDA source has `long long n`, but Fill declares "
            "`n: int32`",
        ):
            compile_variant(variant, "sm_80")


def test_only_kernels_that_were_checked_are_loaded(source_of):
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the extra cu12 or cu13")
    compiled = compile_variant(Variant.of("fill", source_of(RIGHT), {}), "sm_80")
    gpu = Gpu(0, "none", "sm_80", sm_count=1, shared_bytes=0, l2_bytes=0, context=0)

    with pytest.raises(SignatureError, match="kernel fill with Fill is not declared by its Source"):
        load(compiled, gpu, FILL)
