"""Candidates of GEMM tuning, and the choice among them by given times."""

from dataclasses import replace

import numpy as np
import pytest
from code_forms import FORMS
from spaninfer_kernels_cpu import Format, MicroKernels, pack
from spaninfer_kernels_cpu.codegen.isa_level import ISA_LEVELS
from spaninfer_kernels_cpu.gemm.tuning import (
    BOUND,
    EXPANDED_BOUND,
    ROWS,
    bound_of,
    candidates,
    choose,
    is_within,
    weights_within,
)

LEVELS = {level.name: level for level in ISA_LEVELS}
KINDS = [Format("float32"), Format("bfloat16"), Format("int8", 32), FORMS["Q4_K"]]
ZEN4 = ("avx512_bf16", "avx512_vnni", "avx2")


def of(format, *names, rounded=False):
    return candidates(format, rounded=rounded, levels=[LEVELS[name] for name in names])


def times(found, **factors):
    """The same time for all, times a factor for few and for many rows of some."""
    by_name = {each.name: dict.fromkeys(ROWS, 1.0) for each in found}
    for number, (few, many) in factors.items():
        name = found[int(number[1:])].name
        by_name[name] = {1: few, 4: few, 8: few, 64: many}
    return by_name


@pytest.mark.parametrize("format", KINDS, ids=lambda format: format.kind)
def test_the_default_comes_first_and_no_candidate_twice(format):
    for names in (("portable",), ("avx2",), ZEN4, ("amx_bf16", "amx", *ZEN4)):
        found = of(format, *names)

        expected = MicroKernels.of(format, rounded=False, level=LEVELS[names[0]])
        assert found[0].micro == expected
        assert len({each.micro for each in found}) == len({each.name for each in found})
        assert len(found) == len({each.name for each in found})


def test_every_level_and_prefetch_is_among_the_candidates():
    found = {each.name: each.micro for each in of(Format("int8", 32), *ZEN4)}

    levels = [name for name in found if "," not in name]
    assert levels == ["avx512_bf16", "avx2"]  # avx512_vnni is the same for int8
    assert (
        found["avx512_bf16"].one.ahead
        > found["avx512_bf16, no prefetch, tile of 4 rows"].one.ahead
        == 0
    )
    assert found["avx512_bf16, no prefetch, tile of 4 rows"].small.ahead == 0
    far = found["avx512_bf16, prefetch of 8192 B to L2"]
    assert (far.one.ahead, far.one.far, far.small.far) == (8192, True, True)
    assert found["avx512_bf16, no prefetch, tile of 4 rows"].many.rows == 4
    near = {each.name: each.micro for each in of(Format("int8", 32), "avx2")}
    near = near["avx2, prefetch of 4096 B to L1"]
    assert (near.one.ahead, near.small.ahead) == (4096, 0)


def test_without_times_of_the_default_it_stays():
    found = of(Format("int8", 32), "avx2")

    assert choose(found, {}).micro == found[0].micro
    assert choose(found, {found[1].name: dict.fromkeys(ROWS, 1e-9)}).micro == found[0].micro


def test_a_gain_within_the_margin_is_none():
    found = of(Format("int8", 32), "avx2")

    assert choose(found, times(found, _1=(0.96, 0.96))).few == found[0]
    assert choose(found, times(found, _1=(0.94, 0.96))).few == found[1]


def test_what_is_slower_with_one_row_is_not_chosen_for_being_faster_with_four():
    found = of(Format("int8", 32), "avx2")
    seconds = times(found)
    seconds[found[1].name] = {1: 1.1, 4: 0.3, 8: 0.3, 64: 1.0}

    assert choose(found, seconds).few == found[0]


def test_a_kernel_is_not_faster_than_itself():
    found = of(Format("int8", 32), "avx2")
    prefetch = next(each for each in found if "to L2" in each.name)
    tile = found[-1]
    assert "tile" in tile.name
    seconds = times(found)
    seconds[prefetch.name] = {1: 1.0, 4: 1.0, 8: 1.0, 64: 0.5}  # of the default's kernel for many
    seconds[tile.name] = {1: 0.5, 4: 0.5, 8: 0.5, 64: 1.0}  # and for few

    choice = choose(found, seconds)

    assert choice.few == choice.many == found[0]


@pytest.mark.parametrize(("other", "expected"), [(1.0, "tile"), (0.7, ""), (1.4, "")])
def test_a_gain_is_larger_than_what_times_of_one_kernel_differ_by(other, expected):
    found = of(Format("int8", 32), "avx2")
    prefetch = next(each for each in found if "to L2" in each.name)
    tile = found[-1]
    seconds = times(found)
    seconds[prefetch.name] = {1: 1.0, 4: 1.0, 8: 1.0, 64: other}  # of the default's kernel for many
    seconds[tile.name] = {1: 1.0, 4: 1.0, 8: 1.0, 64: 0.8}

    assert choose(found, seconds).many == (tile if expected else found[0])


def test_few_and_many_rows_are_chosen_apart():
    found = of(Format("int4", 32), "avx2")
    prefetch, tile = (
        next(number for number, each in enumerate(found) if word in each.name)
        for word in ("to L2", "tile of 8")
    )

    choice = choose(found, times(found, **{f"_{prefetch}": (0.5, 1), f"_{tile}": (1, 0.5)}))

    assert choice.few == found[prefetch]
    assert choice.many == found[tile]
    assert choice.micro == replace(found[prefetch].micro, many=found[tile].micro.many)


@pytest.mark.parametrize(("gain", "expected"), [((0.5, 1), "avx2"), ((0.5, 1.1), "avx512_bf16")])
def test_kernels_that_prepare_activations_otherwise_are_chosen_as_a_whole(gain, expected):
    found = of(Format("int8", 32), *ZEN4)  # int16 activations of AVX2, int8 of VNNI
    avx2 = [each.name for each in found].index("avx2")

    choice = choose(found, times(found, **{f"_{avx2}": gain}))

    assert choice.few == choice.many
    assert choice.few.name == expected


def test_a_row_of_bfloat16_is_multiplied_alike_alone_and_among_others():
    found = of(Format("bfloat16"), *ZEN4, rounded=True)
    vector = next(number for number, each in enumerate(found) if each.name == "avx512_vnni")

    choice = choose(found, times(found, **{f"_{vector}": (0.5, 3)}))

    assert choice.micro.one.isa_path == choice.micro.many.isa_path


def test_a_candidate_begins_only_if_one_as_slow_as_the_slowest_still_fits():
    assert is_within(spent_s=0, longest_s=0, budget_s=10)
    assert is_within(spent_s=7, longest_s=3, budget_s=10)
    assert not is_within(spent_s=7.1, longest_s=3, budget_s=10)


@pytest.mark.parametrize(
    ("name", "bound"), [("Q4_K", EXPANDED_BOUND), ("Q6_K", EXPANDED_BOUND), ("Q4_0", BOUND)]
)
def test_kernels_that_see_activations_by_records_are_as_like_others_as_expanded_codes(name, bound):
    avx2, vnni = (of(FORMS[name], level)[0] for level in ("avx2", "avx2_vnni"))

    assert bound_of(avx2, vnni) == bound_of(vnni, avx2) == bound
    assert bound_of(avx2, avx2) == BOUND


def weights(*outputs):
    return [pack(np.zeros((each, 64), np.float32), Format("float32")) for each in outputs]


def outputs_within(found, num_bytes):
    return [each.layout.outputs for each in weights_within(found, num_bytes)]


def test_weights_of_every_shape_are_timed_then_more_that_fit():
    found = weights(128, 64, 128, 64, 128)
    of_64 = found[1].panels.nbytes

    assert outputs_within(found, 5 * of_64) == [64, 128, 128]
    assert outputs_within(found, 100 * of_64) == [64, 128, 128, 64, 128]


def test_a_head_that_does_not_fit_leaves_room_for_the_other_weights():
    found = weights(64, 6400, 64, 64)

    assert outputs_within(found, 3 * found[0].panels.nbytes) == [64, 64, 64]


def test_one_weight_is_timed_however_large_it_is():
    assert outputs_within(weights(128), 1) == [128]
