"""Packed codes: unpacked by definition, on the host and as backends do it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from spaninfer_engine.load.quantised.packed_codes import PackedCodes, codes_of_words

SWAPPED = (0, 4, 1, 5, 2, 6, 3, 7)

LAYOUTS = [
    pytest.param({"bits": 4, "is_down": True}, id="GPTQ"),
    pytest.param({"bits": 4, "is_down": True, "middle": 8}, id="GPTQ symmetric"),
    pytest.param({"bits": 2, "is_down": True}, id="GPTQ of 2 bits"),
    pytest.param({"bits": 8, "is_down": True, "middle": 128}, id="GPTQ of 8 bits"),
    pytest.param({"bits": 4, "is_turned": True, "order": SWAPPED}, id="AWQ"),
    pytest.param({"bits": 4, "is_turned": True, "order": SWAPPED, "middle": 8}, id="AWQ middle"),
    pytest.param({"bits": 4, "middle": 8}, id="compressed-tensors"),
    pytest.param({"bits": 8}, id="compressed-tensors of 8 bits"),
]


def drawn(**layout: Any) -> PackedCodes:
    words = np.random.default_rng(0).integers(-(2**31), 2**31, (6, 5)).astype(np.int32)
    return PackedCodes(words, **layout)


def by_definition(packed: PackedCodes) -> NDArray[np.int64]:
    """Return codes [N K] one by one, in Python's own integers."""
    each = 32 // packed.bits
    lines = packed.words.T if packed.is_down else packed.words
    order = packed.order or range(each)
    rows = [
        [
            ((int(word) >> (packed.bits * place)) & ((1 << packed.bits) - 1)) - packed.middle
            for word in line
            for place in order
        ]
        for line in lines
    ]
    return np.array(rows).T if packed.is_turned else np.array(rows)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_codes_are_the_fields_of_their_words(layout: dict[str, Any]) -> None:
    packed = drawn(**layout)
    wanted = by_definition(packed)

    np.testing.assert_array_equal(np.asarray(packed), wanted)
    assert np.asarray(packed).dtype == (np.int8 if packed.middle else np.uint8)
    assert (packed.shape, len(packed), packed.size) == (wanted.shape, len(wanted), wanted.size)
    np.testing.assert_array_equal(packed[[3, 1], 2:4], wanted[[3, 1], 2:4])
    np.testing.assert_array_equal(packed[3:5], wanted[3:5])
    np.testing.assert_array_equal(packed[..., 1:, :], wanted[1:])


@pytest.mark.parametrize("offset", [0, 8, 128])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_torch_unpacks_them_plus_an_offset(layout: dict[str, Any], offset: int) -> None:
    torch = pytest.importorskip("torch")
    from spaninfer_engine.backends.cuda.weights.code_words import unpack_codes
    from spaninfer_engine.backends.torch.upload import fill

    packed = drawn(**layout)
    out = torch.full(packed.shape, 77, dtype=torch.uint8)

    unpack_codes(packed, out, offset, fill)

    np.testing.assert_array_equal(out.numpy(), (by_definition(packed) + offset) % 256)


@pytest.mark.parametrize(("bits", "columns"), [(3, 50), (4, 37), (6, 26)])
def test_codes_that_words_cut_or_that_end_within_one_become_an_array(
    bits: int, columns: int
) -> None:
    words = np.random.default_rng(0).integers(-(2**31), 2**31, (6, 5)).astype(np.int32)

    codes = codes_of_words(words, bits, columns, middle=1 << (bits - 1))

    assert isinstance(codes, np.ndarray)
    text = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    values = 1 << np.arange(bits)
    wanted = [(text[:, at * bits : (at + 1) * bits] * values).sum(1) for at in range(columns)]
    np.testing.assert_array_equal(codes, np.stack(wanted, 1) - (1 << (bits - 1)))
