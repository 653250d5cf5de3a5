"""ISA levels: detection and choice, and equal results at every level."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from assembly import Target, lowered
from numba import types
from processes import printed_by
from spaninfer_kernels_cpu import Format, IsaLevelError, MicroKernels
from spaninfer_kernels_cpu.codegen import isa_level
from spaninfer_kernels_cpu.codegen.isa_level import ISA_LEVELS, Core, choose, core_of
from spaninfer_kernels_cpu.gemm.amx_panel import lay, multiply_part, parts_of
from spaninfer_kernels_cpu.gemm.amx_tile import configure
from spaninfer_kernels_cpu.gemm.micro_kernel import k_blocks, rows_per_task
from spaninfer_kernels_cpu.gemm.micro_kernel_choice import medium_tile, micro_kernels, small_tile
from spaninfer_kernels_cpu.gemm.panel_rows import PanelRows
from spaninfer_kernels_cpu.gemm.tile_gemm import fill_tile
from spaninfer_kernels_cpu.quantisation.layout import Layout

KINDS = ("float32", "bfloat16", "int8", "int4")

HASWELL = frozenset({"avx", "avx2", "fma", "f16c", "bmi2"})
ALDER_LAKE = HASWELL | {"avxvnni"}
SKYLAKE_SERVER = HASWELL | {"avx512f", "avx512bw", "avx512vl"}
ICE_LAKE = SKYLAKE_SERVER | {"avx512vnni"}
ZEN_4 = ICE_LAKE | {"avx512bf16"}
SAPPHIRE_RAPIDS = ZEN_4 | {"amx-tile", "amx-int8", "amx-bf16", "avxvnni"}
WITH_TILES = SAPPHIRE_RAPIDS | {isa_level.PERMITTED}
NEOVERSE = frozenset({"neon", "i8mm", "bf16"})

PLAIN_PYTEST = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # hypothesis takes half a second to import

WIDE = Format("w13a13", 64)
MARKS = {  # instructions, and the tiers whose new kinds use them, or WIDE
    r"vpmaddubsw": {"avx2"},
    r"vpdpbusd\s.*%ymm": {"avx2_vnni"},
    r"vpdpbusd\s.*%zmm": {"avx512_vnni", "amx_bf16", "amx"},
    r"vdpbf16ps\s.*%zmm": {"avx512_bf16"},
    r"vpdpwssd\s.*%ymm": {"avx2_vnni"},
    r"vpdpwssd\s.*%zmm": {"avx512_vnni", "avx512_bf16", "amx_bf16", "amx"},
    r"tdpbsud\s": {"amx_bf16", "amx"},
    r"tdpbf16ps\s": {"amx_bf16"},
    r"ldtilecfg\s": {"amx_bf16", "amx"},
}


@pytest.mark.parametrize(
    ("features", "name"),
    [
        (frozenset(), "portable"),
        (NEOVERSE, "neon_i8mm"),
        (NEOVERSE - {"i8mm"}, "portable"),
        (HASWELL, "avx2"),
        (ALDER_LAKE, "avx2_vnni"),
        (SKYLAKE_SERVER, "avx2"),
        (ICE_LAKE, "avx512_vnni"),
        (ZEN_4, "avx512_bf16"),
        (ZEN_4 | {"emeraldrapids"}, "avx512_vnni"),  # a virtual machine without tiles
        (SAPPHIRE_RAPIDS, "avx512_vnni"),
        (WITH_TILES, "amx_bf16"),
    ],
)
def test_the_best_isa_level_that_the_cpu_has_is_chosen(features, name):
    assert choose(ISA_LEVELS, features, None).name == name


def test_an_isa_level_can_be_forced_if_the_cpu_has_it():
    assert choose(ISA_LEVELS, ZEN_4, "avx2").name == "avx2"
    assert choose(ISA_LEVELS, SAPPHIRE_RAPIDS, "avx512_bf16").name == "avx512_bf16"
    assert choose(ISA_LEVELS, WITH_TILES, "amx").name == "amx"
    with pytest.raises(IsaLevelError, match="is 'amx'"):
        choose(ISA_LEVELS, SAPPHIRE_RAPIDS, "amx")
    with pytest.raises(IsaLevelError, match="is 'avx512_vnni', but this CPU has portable, avx2;"):
        choose(ISA_LEVELS, SKYLAKE_SERVER, "avx512_vnni")
    with pytest.raises(IsaLevelError, match="is 'sse9'"):
        choose(ISA_LEVELS, ZEN_4, "sse9")


def test_this_process_has_an_isa_level_whose_needs_are_met():
    assert isa_level.active_level().needs <= isa_level.present()


def test_numba_settings_that_name_another_cpu_are_followed():
    program = "from spaninfer_kernels_cpu import active_level; print(active_level().name)"
    settings = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c"}

    assert printed_by(program, settings) == "avx2"


def new_ways(level):
    """Kinds of weights that no tier before this one multiplies in the same way.

    And with which activations: rounded to bfloat16, not rounded, or both.
    """
    formats = [Format(kind) for kind in KINDS]
    formats += [Format(kind, 32) for kind in KINDS if Format(kind).is_quantised]

    def way(format, rounded, level):
        return format, micro_kernels(format, rounded=rounded, level=level)

    known = {
        way(format, rounded, before)
        for before in ISA_LEVELS[: ISA_LEVELS.index(level)]
        for format in formats
        for rounded in (False, True)
    }
    ways = {
        kind: {
            rounded
            for rounded in (False, True)
            for format in formats
            if format.kind == kind and way(format, rounded, level) not in known
        }
        for kind in KINDS
    }
    return {kind: rounded for kind, rounded in ways.items() if rounded}


def test_eight_rows_of_int4_are_one_tile_where_registers_have_512_bits():
    tiles = {}
    for level in ISA_LEVELS:
        for kind in KINDS:
            format = Format(kind)
            few = small_tile(*micro_kernels(format, rounded=False, level=level), level)
            tiles[level.name, kind] = few.rows, medium_tile(few, format, level).rows

    assert {case for case, (few, some) in tiles.items() if some > few} == {
        (level.name, "int4") for level in ISA_LEVELS if "avx512f" in level.needs
    }
    assert {some for few, some in tiles.values() if some > few} == {8}


def test_every_isa_level_has_a_gemm_of_its_own_for_some_kind():
    both, rounded = {False, True}, {True}
    assert {level.name: new_ways(level) for level in ISA_LEVELS} == {
        "portable": {"float32": both, "bfloat16": both, "int8": both, "int4": both},
        "neon_i8mm": {"bfloat16": rounded, "int8": both, "int4": both},
        "avx2": {"float32": both, "bfloat16": both, "int8": both, "int4": both},
        "avx2_vnni": {"int8": both, "int4": both},
        "avx512_vnni": {"float32": both, "bfloat16": both, "int8": both, "int4": both},
        "avx512_bf16": {"bfloat16": rounded},
        "amx_bf16": {"bfloat16": both, "int8": both, "int4": both},
        "amx": {"int8": both, "int4": both},
    }


@pytest.mark.parametrize("kind", ["int4", "int8", "bfloat16", "int6"])
def test_paced_cores_go_over_a_panel_once_where_groups_cut_it(kind):
    format = Format(kind, 32 if Format(kind).is_quantised else None)
    for level in ISA_LEVELS:
        for core in (Core(), Core(paced=True)):
            micro = MicroKernels.of(format, rounded=False, level=replace(level, core=core))

            is_paced = core.paced and level.blocks > 2 and not micro.one.uses_amx
            assert (micro.medium.at_once > 0) == is_paced
            assert not is_paced or micro.medium.rows == 2 * micro.small.rows


def test_what_suits_a_core_follows_from_its_name():
    assert core_of(ZEN_4 | {"znver4"}) == Core(ahead=0, code_tile=(6, 2), expanded_rows=3)
    assert core_of(ZEN_4 | {"znver5"}).paced
    assert core_of(ICE_LAKE | {"icelake-server"}) == Core()
    assert core_of(SAPPHIRE_RAPIDS | {"rocketlake"}).far  # as a hypervisor calls a newer one


def test_tiles_of_codes_are_those_of_the_core_where_registers_hold_several_blocks():
    shapes = {}
    for level in ISA_LEVELS:
        here = replace(level, core=Core(rows=4, code_tile=(6, 2)))
        for kind in ("float32", "int8"):
            _, many = micro_kernels(Format(kind), rounded=False, level=here)
            shapes[level.name, kind] = many.rows, many.blocks

    assert shapes["avx512_vnni", "float32"] == shapes["avx512_bf16", "float32"] == (4, 4)
    assert shapes["avx512_vnni", "int8"] == shapes["avx512_bf16", "int8"] == (6, 2)
    assert shapes["neon_i8mm", "int8"] == shapes["avx2_vnni", "int8"] == (6, 1)


def test_a_row_whose_scale_is_one_is_not_cut():
    (level,) = (each for each in ISA_LEVELS if each.name == "avx512_vnni")

    level = replace(level, core=Core(paced=True))

    assert MicroKernels.of(Format("int8"), rounded=False, level=level).medium.at_once == 0


def test_cores_that_read_streams_themselves_ask_for_planes_alone():
    asked = {}
    for level in ISA_LEVELS:
        for ahead in (0, 4096):
            here = replace(level, core=Core(ahead=ahead))
            for bits in ("int4", "int6", "bfloat16"):
                one, _ = micro_kernels(Format(bits), rounded=False, level=here)
                asked[level.name, bits, ahead] = one.ahead, one.far

    assert {asked[name, bits, 0] for name, bits, _ in asked if bits == "int4"} == {(0, False)}
    assert asked["avx512_vnni", "int6", 0] == (8192, True)
    assert asked["avx512_vnni", "int6", 4096] == asked["avx512_vnni", "int4", 4096] == (4096, False)
    assert asked["avx2", "int4", 0] == asked["avx2", "int4", 4096] == (0, False)
    assert asked["avx2", "int6", 4096] == asked["avx2", "bfloat16", 0] == (2048, False)
    assert asked["avx2_vnni", "int6", 4096] == asked["neon_i8mm", "int6", 0] == (0, False)


def test_one_row_by_avx2_reads_codes_of_a_plane_front_to_back():
    by_blocks = {}
    for level in ISA_LEVELS:
        for bits in ("int8", "int4", "int6", "int3.5", "bfloat16"):
            micro = MicroKernels.of(Format(bits), rounded=False, level=level)
            by_blocks[level.name, bits] = micro.one.by_blocks
            assert not micro.small.by_blocks

    read = {bits for (name, bits), is_so in by_blocks.items() if name == "avx2" and not is_so}
    assert read == {"int8", "int4", "bfloat16"}
    assert by_blocks["portable", "int8"]
    assert by_blocks["avx2_vnni", "int4"]
    assert not by_blocks["avx512_vnni", "int6"]


def test_tiles_of_a_block_leave_their_weights_to_the_tile_before():
    (level,) = (each for each in ISA_LEVELS if each.name == "avx2")

    micro = MicroKernels.of(Format("int6", 32), rounded=False, level=level)

    assert (micro.one.ahead, micro.small.ahead, micro.medium.ahead) == (2048, 0, 0)


WIDE_TIERS = ("portable", "avx2_vnni", "avx512_vnni")
"""Those that multiply codes of 16 bits in a way of their own, besides avx2."""

PUBLISHED = {  # codes: six seconds each where instructions are emulated
    "portable": ("Q6_K", "IQ4_XS"),
    "avx512_vnni": ("IQ4_XS", "pairs_g32"),
}
CALLS = {  # of steps
    "avx512_vnni": {"gemm/test_gemm_call.py": "rounded_where"},
    "avx512_bf16": {"gemm/test_gemm_call.py": "rounded_where"},
    "amx_bf16": {
        "gemm/test_gemm_call.py": "(in_blocks or bfloat16)",
        "moe/test_experts.py": "bfloat16",
    },
}
"""What a tier does in a way of its own beside products of `new_ways`: tests by file."""


@pytest.fixture(scope="module")
def cache(request, tmp_path_factory):
    """A folder for kernels whose instructions are emulated: other processes would discard them.

    It is the same for all processes that share the tests, and for the next run, beside what else
    pytest keeps: 113 of 155 CPU-seconds go into these kernels (EPYC, Zen 3). Where pytest keeps
    nothing, it is a folder of this run.
    """
    try:
        return request.config.cache.mkdir("emulated")
    except (AttributeError, OSError):  # `-p no:cacheprovider`, or a checkout that is read-only
        own = tmp_path_factory.getbasetemp()
        return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "emulated"


def is_told_apart(level):
    """Is there more to run in a tier than what other tests of this process do?"""
    return level != isa_level.active_level() or level.name in {*PUBLISHED, *CALLS}


@pytest.mark.slow
@pytest.mark.parametrize(
    "level", [*filter(is_told_apart, ISA_LEVELS)], ids=lambda level: level.name
)
def test_gemms_are_right_at_every_isa_level(level, cache):
    """For `new_ways`, published codes and calls of steps. Instructions that this CPU lacks are
    emulated, nothing else is.

    One process compiles each kernel once for all of them. Products in the tier of this process are
    left to gemm/test_gemm.py itself.
    """
    chosen = dict(CALLS.get(level.name, {}))
    if codes := PUBLISHED.get(level.name):
        chosen["gemm/test_code_dots.py"] = f"numbers_that and ({' or '.join(codes)})"
    if level != isa_level.active_level():
        chosen["gemm/test_gemm.py"] = " or ".join(
            kind if False in rounded else f"{kind}_activations"
            for kind, rounded in new_ways(level).items()
        )
        if level.name in WIDE_TIERS:
            chosen["gemm/test_gemm.py"] += f" or {WIDE.kind} or 16_bits_with_a_sign"

    run_tests(level, chosen, cache)


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "form"), [("portable", "pairs_g32"), ("avx512_vnni", "Q6_K")])
def test_other_published_codes_are_multiplied_at_every_isa_level_for_bytes(name, form, cache):
    (level,) = [level for level in ISA_LEVELS if level.name == name]

    run_tests(level, {"gemm/test_code_dots.py": f"numbers_that and {form}"}, cache)


@pytest.mark.parametrize(
    ("channels", "rounded", "expected"),
    [
        (896, True, (1, 256)),
        (896, False, (1, 256)),
        (4864, True, (2, 192)),
        (4864, False, (4, 192)),
        (18944, True, (8, 192)),
        (3584, False, (2, 128)),
        (4849, True, (1, 96)),  # no whole tiles
        (32 * 151, False, (1, 32)),  # a prime number of tiles
    ],
)
def test_activations_of_a_task_fit_the_second_cache(channels, rounded, expected):
    (level,) = [level for level in ISA_LEVELS if level.name == "amx_bf16"]
    _, many = micro_kernels(Format("bfloat16"), rounded=rounded, level=level)
    layout = Layout(Format("bfloat16"), 64, channels)

    into = k_blocks(layout, many)

    assert (into, rows_per_task(layout, many, into)) == expected
    assert into == 1 or channels % (32 * into) == 0


def test_vectors_multiply_whole_rows():
    (level,) = [level for level in ISA_LEVELS if level.name == "avx512_vnni"]
    for kind in KINDS:
        _, many = micro_kernels(Format(kind), rounded=False, level=level)
        layout = Layout(Format(kind), 64, 4864)

        assert (k_blocks(layout, many), rows_per_task(layout, many)) == (1, 192)


def test_codes_are_unpacked_for_many_rows_where_256_bits_are_multiplied_at_a_time():
    kinds = ("float32", "bfloat16", "w8a16", "int8", "int6", "int5", "int4", "int3")
    unpacked = {
        (level.name, kind)
        for level in ISA_LEVELS
        for kind in kinds
        if micro_kernels(Format(kind), rounded=False, level=level)[1].unpacks
    }

    assert unpacked == {("avx2", kind) for kind in ("int6", "int5", "int3")}
    assert {
        level.name
        for level in ISA_LEVELS
        if micro_kernels(WIDE, rounded=False, level=level)[1].unpacks
    } == {"avx2"}


def run_tests(level, chosen, cache):
    """Run tests of files, by keywords, in a process that is kept to a tier, emulated if need be.

    Kernels with emulated instructions are kept in the cache.
    """
    is_emulated = not level.needs <= isa_level.present()
    emulation = ["-p", "emulation"] if is_emulated else []
    own = {"NUMBA_CACHE_DIR": str(cache)} if is_emulated else {}
    here = Path(__file__).parents[1]
    keywords = " or ".join(f"{Path(file).name} and ({words})" for file, words in chosen.items())

    run = subprocess.run(
        [sys.executable, "-m", "pytest", *emulation, *map(str, chosen), "-k", keywords],
        cwd=here,  # where Python finds the plugin
        env=os.environ | PLAIN_PYTEST | {isa_level.VARIABLE: level.name} | own,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "level",
    [level for level in ISA_LEVELS if "neon" not in level.needs],
    ids=lambda level: level.name,
)
def test_kernels_hold_the_instructions_of_their_isa_level_and_of_no_other(level):
    features = ",".join(f"+{feature}" for feature in sorted(level.needs - {isa_level.PERMITTED}))
    cpu = "x86-64-v3" if level.needs else "x86-64"
    target = Target("x86_64-unknown-linux-gnu", cpu, features)

    code = ""
    for kind, ways in new_ways(level).items():
        format = Format(kind)
        for chosen in {micro_kernels(format, rounded=rounded, level=level) for rounded in ways}:
            code += lowered(tiles_of(*chosen), (types.int64,) * 6).assembly(target)
    wide = micro_kernels(WIDE, rounded=False, level=level)
    code += lowered(tiles_of(*wide), (types.int64,) * 6).assembly(target)

    for pattern, users in MARKS.items():
        assert bool(re.search(pattern, code)) == (level.name in users), pattern
    assert re.search(r"%[xt]mm", code)
    if "avx512f" not in level.needs:
        assert "%zmm" not in code
    if not level.needs:
        assert "%ymm" not in code


def tiles_of(one, many):
    """A kernel that fills a tile of one row and one of many; its arguments are numbers."""

    def kernel(weights, x, groups, group_bytes, row_bytes, out):
        sizes = (groups, group_bytes, row_bytes)
        fill_tile(one, weights, (x, row_bytes, 0), sizes, out, (0, 0))
        fill_tile(many, weights, (x, row_bytes, 5), sizes, out, (0, 0))

    def kernel_of_squares(weights, x, groups, group_bytes, row_bytes, out):
        sizes = (groups, group_bytes, row_bytes)
        fill_tile(one, weights, (x, row_bytes, 0), sizes, out, (0, 0))
        rows = PanelRows(x, row_bytes, 6, weights, sizes, out)
        part = lay(many, rows, parts_of(many, rows), 0, out)
        configure(many, 6, part.chunk)
        multiply_part(many, rows, part, 0, (0, out), (0, 0))

    return kernel_of_squares if many.uses_amx else kernel
