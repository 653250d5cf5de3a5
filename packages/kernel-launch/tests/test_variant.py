"""Variants are values: equal content, equal text."""

from spaninfer_kernel_launch import ARCHITECTURES, Source, Variant

SOURCE = Source("spaninfer_kernel_launch", "csrc/math.cuh")


def test_macros_are_ordered_and_booleans_become_digits():
    variant = Variant.of("norm", SOURCE, {"THREADS": 256, "BIAS": True, "T": "half"})

    assert str(variant) == "norm[BIAS=1 T=half THREADS=256]"
    assert variant.architectures == ARCHITECTURES


def test_the_text_follows_source_and_macros_only():
    one = Variant.of("norm", SOURCE, {"A": 1, "B": 2})

    assert one.text == Variant.of("norm", SOURCE, {"B": 2, "A": 1}, ("sm_80",)).text
    assert one.text != Variant.of("norm", SOURCE, {"A": 1, "B": 3}).text
    assert one.text != Variant.of("norm", SOURCE, {"A": 1}).text
    longer = Source("spaninfer_kernel_launch", "csrc/math.cuh", headers=("reduce.cuh",))
    assert one.text != Variant.of("norm", longer, {"A": 1, "B": 2}).text
