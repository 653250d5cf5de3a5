"""Quantised weights on their way to a backend: as codes where it has a kernel, else dequantised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from spaninfer_engine.backends.reference.ops import ReferenceOps
from spaninfer_engine.load.tensors.quantised import QuantizedEntry
from spaninfer_engine.ops.operation import HeadRows, TakenApart, Use
from spaninfer_engine.program.packer import Packer
from spaninfer_engine.spec.weight_nodes import Weight
from spaninfer_op_reference import QuantizedWeight, WeightFormat, dequantize_weight

INT4 = WeightFormat("int4", "integer", 4, 1, 4, "float32", stored_bits=12)
INT5 = WeightFormat("int5", "integer", 5, 1, 4, "float32", stored_bits=13)
SHAPE = (6, 8)


def _entry(format: WeightFormat, seed: int) -> QuantizedEntry:
    rng = np.random.default_rng(seed)
    codes = rng.integers(-8, 8, SHAPE).astype(np.int8)
    scales = rng.standard_normal((6, 2)).astype(np.float32)
    weight = QuantizedWeight(format, codes, scales)
    return QuantizedEntry(format, SHAPE, np.dtype(np.float32), weight.nbytes, lambda: weight)


class _Reader:
    """Two weights in int4, one in int5, one in plain numbers."""

    entries: ClassVar = {"a": _entry(INT4, 0), "b": _entry(INT4, 1), "c": _entry(INT5, 2)}

    def read(self, name: str) -> Any:
        return self.entries[name].read() if name in self.entries else np.ones(SHAPE, np.float32)

    def quantized(self, name: str) -> QuantizedEntry | None:
        return self.entries.get(name)


class _Ops(ReferenceOps):
    """Takes codes in every format."""

    def quantized_packer(
        self,
        formats: Sequence[WeightFormat],  # noqa: ARG002
        layout: str,
    ) -> Callable[[Sequence[QuantizedWeight]], Any] | None:
        return None if layout == "wide" else lambda weights: _Codes(weights)


class _OneLayout(_Ops):
    """Lays out plain numbers for GEMMs as wide ones, and codes of tables as for GEMMs."""

    def expanded_layout(self, layout: str) -> str:
        return "wide" if layout == "gemm" else layout

    def coded_layout(self, layout: str) -> str:
        return "gemm" if layout == "table" else layout


class _Noting(_Ops):
    """Notes the layouts that plain numbers are packed in."""

    def __init__(self) -> None:
        super().__init__("float32")
        self.layouts: list[str] = []

    def pack(self, arrays: Sequence[Any], layout: str) -> Any:
        self.layouts.append(layout)
        return super().pack(arrays, layout)


class _Codes:
    def __init__(self, weights: Sequence[QuantizedWeight]) -> None:
        self.weights, self.nbytes = weights, 1


def _use(*names: str, **options: Any) -> Use:
    return Use("weight", tuple(Weight(name, SHAPE) for name in names), **options)


def _pack(uses: Sequence[Use], layout: str = "codes") -> tuple[Any, Packer[Any]]:
    packer: Packer[Any] = Packer(_Ops("float32"), _Reader())
    return packer(uses, layout), packer


def test_weights_of_one_format_and_of_several_uses_stay_codes() -> None:
    packed, packer = _pack([_use("a"), _use("c")])

    assert [weight.format for weight in packed.weights] == [INT4, INT5]
    (use,) = packer.quantised
    assert (use.is_expanded, use.num_bytes, use.stored_bytes) == (False, 1, 6 * 8 * 25 // 8)


def test_experts_are_stacked_as_codes() -> None:
    packed, _ = _pack([_use("a", "b", stacked=True)])

    (stack,) = packed.weights
    expected = np.stack([_Reader().read(name) for name in "ab"])
    np.testing.assert_array_equal(dequantize_weight(stack), expected)


@pytest.mark.parametrize("names", ["a", "ab"], ids=["one", "experts"])
def test_rows_that_take_turns_are_taken_apart_as_codes(names: str) -> None:
    is_stack = len(names) > 1
    use = _use(*names, stacked=is_stack, view=TakenApart(1 if is_stack else 0))

    packed, _ = _pack([use])

    (weight,) = packed.weights
    expected = use.assemble(tuple(map(_Reader().read, names)))
    np.testing.assert_array_equal(dequantize_weight(weight), expected)


@pytest.mark.parametrize(
    ("uses", "layout"),
    [
        ([_use("a")], "wide"),  # the backend has no kernel
        ([_use("a"), _use("plain")], "codes"),
        ([_use("a", "c", stacked=True)], "codes"),  # experts of two formats
        ([_use("a", view=HeadRows(2, 0, 2))], "codes"),
        ([_use("a", view=TakenApart(1))], "codes"),  # columns
    ],
)
def test_what_has_no_kernel_is_expanded_once(uses: list[Use], layout: str) -> None:
    packed, packer = _pack(uses, layout)

    reader = _Reader()
    arrays = [use.assemble(tuple(reader.read(each.name) for each in use.tensors)) for use in uses]
    np.testing.assert_array_equal(packed, np.concatenate(arrays))
    assert packer(uses, layout) is packed
    (use,) = packer.quantised
    assert use.is_expanded
    assert use.num_bytes == packed.nbytes


def test_plain_numbers_are_packed_once_for_layouts_in_which_they_lie_alike() -> None:
    packer = Packer(_OneLayout("float32"), _Reader())

    table, head = packer([_use("plain")], "wide"), packer([_use("plain")], "gemm")
    codes = packer([_use("a")], "gemm")

    assert head is table
    assert isinstance(codes, _Codes)
    assert packer([_use("a")], "table") is codes
    assert packer([_use("a")], "wide") is not codes
    assert len(packer.quantised) == 2


def test_a_weight_that_is_kept_is_packed_as_plain_numbers_and_shared_with_the_table() -> None:
    ops = _Noting()
    packer = Packer(ops, _Reader(), {"head"})

    head, _ = packer([_use("head")], "gemm"), packer([_use("other")], "gemm")

    assert ops.layouts == ["plain", "gemm"]
    assert packer([_use("head")], "plain") is head
