"""Round trips of published codes through packed weights."""

import numpy as np
import pytest
from code_forms import BITS, FORMS, made, meant
from spaninfer_kernels_cpu import (
    Codes,
    Format,
    FormatError,
    GroupedCodes,
    InnerScales,
    ShapeError,
    pack,
    pack_codes,
    unpack,
)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("size", [(1, 1, 256), (1, 1030, 512), (2, 67, 768)], ids=str)
def test_a_weight_is_what_its_codes_scales_and_shifts_say(name, size):
    weight = made(name, *size)

    packed = pack_codes([weight], FORMS[name])

    assert packed.count == size[0]
    expected = meant(name, weight).astype(np.float32)
    for number in range(size[0]):
        np.testing.assert_array_equal(unpack(packed[number]), expected[number])


@pytest.mark.parametrize("name", ["zeros g64", "NVFP4", "rows", "pairs_g32", "pairs_g64"])
def test_the_last_group_may_be_shorter(name):
    weight = made(name, 1, 67, 16 * 7)

    packed = pack_codes([weight], FORMS[name])

    np.testing.assert_array_equal(unpack(packed), meant(name, weight)[0].astype(np.float32))


@pytest.mark.parametrize(("name", "bits"), BITS.items())
def test_blocks_of_gguf_take_the_bytes_of_their_file(name, bits):
    packed = pack_codes([made(name, 1, 128, 1024)], FORMS[name])

    assert packed.panels.nbytes * 8 == 128 * 1024 * bits


@pytest.mark.parametrize(
    ("kind", "levels"), [("int8", 256), ("int4", 16), ("int3.5", 11), ("int3", 8)]
)
@pytest.mark.parametrize("group", [None, 32, 64, 128])
def test_codes_of_instant_quant_have_scales_and_biases_in_bfloat16(kind, levels, group):
    rng = np.random.default_rng(0)
    groups = 2, 67, 1 if group is None else -(-77 // group)
    scales, biases = np.ldexp(rng.integers(1, 100, (2, *groups)), -7)
    codes = rng.integers(0, levels, (2, 67, 77), dtype=np.uint8)

    packed = pack_codes([GroupedCodes(codes, scales, biases)], Format(kind, group))

    each = group or 77
    scales, biases = (np.repeat(one, each, axis=2)[..., :77] for one in (scales, biases))
    expected = ((codes - float(levels // 2)) * scales + biases).astype(np.float32)
    np.testing.assert_array_equal(unpack(packed[1]), expected[1])


def test_a_byte_holds_a_pair_of_channels_and_a_bit_of_another():
    """Of every output of a panel, by the words of `quantisation.codes`, one number at a time."""
    codes = np.random.default_rng(3).integers(0, 11, (1, 64, 64), dtype=np.uint8)
    weight = GroupedCodes(codes, np.ones((1, 64, 2)), np.zeros((1, 64, 2)))

    panel = pack_codes([weight], Format("int3.5", 32)).panels[0]

    words = panel[: 7 * 256].reshape(7, 64, 4)
    for output, byte in ((0, 0), (17, 3), (63, 2)):
        of_output = codes[0, output, byte::4]
        pairs = [int(low) + 11 * int(high) for low, high in of_output.reshape(8, 2)]
        fourths = [pairs[3], pairs[7]]
        expected = [
            pair | (fourths[half] >> 4 + place & 1) << 7
            for half in range(2)
            for place, pair in enumerate(pairs[4 * half : 4 * half + 3])
        ]
        expected.insert(3, fourths[0] & 15 | (fourths[1] & 15) << 4)
        assert words[:, output, byte].tolist() == expected


def test_parts_lie_below_one_another():
    parts = [made("Q4_1", 2, rows, 96, seed=rows) for rows in (3, 70, 64)]

    packed = pack_codes(parts, FORMS["Q4_1"])

    below = np.concatenate([meant("Q4_1", part) for part in parts], axis=1)
    np.testing.assert_array_equal(unpack(packed[1]), below[1].astype(np.float32))


def test_codes_without_scales_for_their_groups_are_refused():
    weight = made("Q4_0", 1, 4, 64)
    without = GroupedCodes(weight.codes, weight.scales)

    with pytest.raises(ShapeError, match=r"scales: expected \(4, 1\) for .*got \(4, 2\)"):
        pack_codes([weight], Format("codes", 64, FORMS["Q4_0"].codes))
    with pytest.raises(ShapeError, match=r"shifts: expected \(4, 2\) .*got none"):
        pack_codes([without], FORMS["Q4_1"])
    with pytest.raises(FormatError, match="float32; codes are packed in formats with codes of"):
        pack_codes([weight], Format("float32"))
    with pytest.raises(FormatError, match="w13a13; codes are packed in formats with codes of"):
        pack_codes([weight], Format("w13a13", 64))


def test_forms_that_are_none_are_refused():
    codes = Codes(4, 8, "float16", "none")

    with pytest.raises(
        FormatError, match=r"codes have 9 bits; choose one of 2, .* 7 of pairs, or 16 w"
    ):
        Codes(9, 64, "float16", "none")
    with pytest.raises(FormatError, match="7 bits beside weights of 4; choose 8, or 7 or 16 besi"):
        Codes(4, 8, "bfloat16", "bias", activation_bits=7)
    with pytest.raises(
        FormatError, match=r"8 bits beside weights of 16; choose .* 16 beside those"
    ):
        Codes(16, 0, "bfloat16", "none")
    with pytest.raises(FormatError, match="codes of 16 bits have a flat scale alone"):
        Codes(16, 0, "bfloat16", "bias", activation_bits=16)
    with pytest.raises(FormatError, match="codes of pairs have a table or inner scales"):
        Codes(7, 5, "float16", "none", table=tuple(range(128)))
    with pytest.raises(FormatError, match=r"group is 16 for int3\.5"):
        Format("int3.5", 16)
    with pytest.raises(FormatError, match="give 16 bytes"):
        Codes(4, 8, "float16", "none", table=(1, 2))
    with pytest.raises(FormatError, match="inner scales lie under bfloat16"):
        Codes(4, 0, "bfloat16", "none", inner=InnerScales(6, 0))
    with pytest.raises(FormatError, match="group is 16 for Codes"):
        Format("codes", 16, codes)
    with pytest.raises(FormatError, match="form is None for codes"):
        Format("codes", 32)
    with pytest.raises(FormatError, match="it describes 'codes' alone"):
        Format("int4", 32, codes)
    with pytest.raises(FormatError, match="give one of int2 to int8"):
        pack(np.ones((1, 32), np.float32), Format("codes", 32, codes))
