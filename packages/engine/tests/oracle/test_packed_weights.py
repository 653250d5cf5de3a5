"""Round trips of every architecture's weights through a file of packed weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from cases import ALL, Case
from spaninfer_engine.backends.cpu.ops import CpuOps, WeightForms
from spaninfer_engine.load.packed.file import PACKED_FILE, describe_tensors, open_packed
from spaninfer_engine.load.packed.packing import Packing
from spaninfer_engine.ops.operation import Use
from spaninfer_engine.program.bind import bind_packed
from spaninfer_engine.program.lower import lower
from spaninfer_engine.program.packer import Packer
from spaninfer_engine.startup.packed_weights import PackedWeights, Weight, name_of, write_weights
from spaninfer_kernels_cpu import Format, Packed


@pytest.mark.parametrize("name", [*ALL, "ernie4_5_moe"])
def test_a_file_holds_what_steps_use_bit_by_bit(
    name: str, load: Callable[[str], Case], tmp_path: Path
) -> None:
    model = load(name).model
    program, reader = lower(model.decoder), model.checkpoint.reader
    ops = CpuOps(weights=WeightForms(Format("int4", 32)))
    pack, kept, found = Packer(ops, reader), dict[str, Weight](), dict[str, Weight]()

    def keep(uses: Sequence[Use], layout: str) -> Weight:
        weight: Weight = pack(uses, layout)
        assert kept.setdefault(name_of(uses, layout), weight) is weight
        return weight

    bind_packed(program, ops, keep)
    tensors = describe_tensors(reader)
    write_weights(tmp_path / PACKED_FILE, kept, Packing("int4", 32), tensors, {})
    with open_packed(tmp_path / PACKED_FILE) as packed:
        weights = PackedWeights(packed)

        def find(uses: Sequence[Use], layout: str) -> Weight:
            return found.setdefault(name_of(uses, layout), weights.pack(uses, layout))

        bind_packed(program, ops, find)

    assert found.keys() == kept.keys()
    for key, weight in found.items():
        assert_same(weight, kept[key])


def assert_same(actual: Weight, expected: Weight) -> None:
    """Fail unless two weights have the same form and the same bits."""
    if isinstance(actual, Packed):
        assert isinstance(expected, Packed)
        assert (actual.layout, actual.count) == (expected.layout, expected.count)
        actual, expected = actual.panels, expected.panels
    assert isinstance(expected, np.ndarray)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.tobytes() == expected.tobytes()
