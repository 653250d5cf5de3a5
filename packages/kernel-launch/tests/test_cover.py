"""Covers of variants and architectures."""

from itertools import combinations, product

from spaninfer_kernel_launch import Source, Variant, every_case, pairwise_cover, value_cover

SOURCE = Source("spaninfer_kernel_launch", "csrc/math.cuh")


def variants(**factors):
    return [
        Variant.of("f", SOURCE, dict(zip(factors, values, strict=True)), ("sm_80", "sm_90a"))
        for values in product(*factors.values())
    ]


def pairs(cases):
    return {
        pair
        for variant, arch in cases
        for pair in combinations((*variant.macros, ("entry", variant.entry), ("arch", arch)), 2)
    }


def test_every_case_is_each_variant_with_each_of_its_architectures():
    one, other = variants(SIZE=[64, 128])

    cases = every_case([one, other])

    assert cases == [(one, "sm_80"), (one, "sm_90a"), (other, "sm_80"), (other, "sm_90a")]


def test_a_cover_has_every_pair_in_far_fewer_cases():
    every = variants(
        SIZE=[64, 96, 128, 256], T=["half", "float", "bfloat16"], NORM=[0, 1], A=[0, 1]
    )

    cover = pairwise_cover(every)

    assert pairs(cover) == pairs(every_case(every))
    assert 12 <= len(cover) <= 16  # sizes times types are needed, 96 cases are there


def test_values_that_stand_alone_meet_each_entry_point_and_no_more():
    every = variants(SIZE=[64, 96, 128, 256], T=["half", "float", "bfloat16"], NORM=[0, 1])

    cover = pairwise_cover(every, alone=["SIZE"])

    for pair in pairs(every_case(every)) - pairs(cover):
        assert "SIZE" in dict(pair)
    assert {dict(variant.macros)["SIZE"] for variant, _ in cover} == {"64", "96", "128", "256"}
    assert len(cover) <= 8  # types times norms, or architectures: 6 are needed


def test_kernels_that_share_no_macro_are_each_covered():
    lone = Variant.of("g", SOURCE, {}, ("sm_75",))

    cover = pairwise_cover([*variants(SIZE=[64]), lone])

    assert (lone, "sm_75") in cover
    assert len(cover) == 3


def test_a_cover_of_values_has_each_with_every_entry_point_that_has_it():
    lone = Variant.of("another", Source("package", "kernel.cu"), {"T": "half"}, ("sm_75", "sm_80"))
    every = [*variants(SIZE=[64, 96, 128, 256], T=["float", "half"]), lone]

    cover = value_cover(iter(every))

    assert values(cover) == values(every_case(every))
    assert len(cover) == 4 + 2  # sizes of one entry point, architectures of the other


def test_of_cases_that_add_as_much_the_one_of_the_smallest_numbers_is_taken():
    architectures = ("sm_75", "sm_80", "sm_90a", "sm_120")
    every = [Variant.of("f", SOURCE, {"SIZE": size}, architectures) for size in (256, 64)]

    cover = value_cover(every)

    assert sorted(dict(variant.macros)["SIZE"] for variant, _ in cover) == ["256", "64", "64", "64"]


def values(cases):
    return {(v.entry, value) for v, arch in cases for value in (("arch", arch), *v.macros)}


def test_a_cover_of_nothing_is_empty():
    assert pairwise_cover([]) == []
