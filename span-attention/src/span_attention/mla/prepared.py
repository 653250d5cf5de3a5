"""The prepared kernels of latent attention."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    Launch,
    Launches,
    NamedCalls,
    RenamedCall,
    compile_variant,
    load,
    numpy_dtype,
    user_cache,
)

from span_attention.layout import SpanLayout
from span_attention.mla.kernels import (
    MLA_CODES,
    MLA_MERGE,
    MLA_NARROW,
    MLA_PLAN,
    MLA_SELECTED,
    MLA_WIDE,
    MergeArguments,
)
from span_attention.mla.tuning import (
    BLOCK,
    MERGE_THREADS,
    PLAN_THREADS,
    TILES,
    WIDEST,
    Division,
)
from span_attention.mla.variant import (
    MLAOptions,
    attend_variant,
    merge_variant,
    options_for,
    plan_variant,
    takes,
)
from span_attention.span_map import key_map, line_map

_MERGING: Final = 8  # thread blocks of mla_merge per multiprocessor


RUN_VALUES = "span_tables table_stride plan parts keys key_scales softmax_scale"
"""What runs are given beside their arrays; `parts` are those of results, in the workspace."""

_PLAN_VALUES: Final = (
    *("words", "ends", "query_start_loc", "seq_lens", "table_rows"),
    *("slices", "causal", "most"),
)


@dataclass(frozen=True, slots=True, eq=False)
class PreparedMLA:
    """The kernels of latent attention for one division, as `BatchMLA` launches them.

    `plan` divides a step; it is given what stands in `_PLAN_VALUES`.
    """

    options: MLAOptions
    layout: SpanLayout
    heads: int
    division: Division
    gpu: Gpu
    plan: Launches
    _attend: Call[Any]  # of AttendArguments, CodesArguments or SelectedArguments
    _merge: Call[MergeArguments] | None

    @property
    def result_alignment(self) -> int:
        """Bytes of a result that are written at once."""
        return 8

    def attend(
        self, num_tokens: int, *, lines_of_position: int
    ) -> tuple[NamedCalls, dict[str, int]]:
        """Return the attention of a layer and the merge of its parts, and their constants.

        They are given `RUN_VALUES`. A position's keys are seen by as many lines as it has, if
        attention is causal.
        """
        query_map, latent_map = partial(_query_map, self, num_tokens), partial(_latent_map, self)
        attend = self._attend, {"codes": "keys", "scales": "key_scales"}
        merge: tuple[RenamedCall, ...] = () if self._merge is None else ((self._merge, {}),)
        calls = NamedCalls(
            (attend, *merge), {"query_map": ("query", query_map), "key_map": ("keys", latent_map)}
        )
        return calls, {
            "span_stride": self.layout.span_stride,
            "token_stride": self.layout.keys.token_stride,
            "span_shift": self.layout.span_len.bit_length() - 1,
            "box_tokens": self.box_tokens,
            "heads": self.heads,
            "num_parts": self.division.parts,
            "lines_of_position": lines_of_position,
            "lanes": self.division.lanes,
        }

    @property
    def box_tokens(self) -> int:
        """Tokens of one TMA copy: those of a span, or of a block if spans are longer."""
        return min(self.layout.span_len, BLOCK)


@lru_cache(maxsize=4096)
def _query_map(kernel: PreparedMLA, num_tokens: int, pointer: int) -> bytes:
    """Return the map of query[T H D] at this address, as lines."""
    lines, size = num_tokens * kernel.heads, kernel.layout.key_size
    return line_map(pointer, kernel.options.dtype, lines, size, kernel.division.tile)


@lru_cache(maxsize=4096)
def _latent_map(kernel: PreparedMLA, pointer: int) -> bytes:
    """Return the map of a layer's latents at this address."""
    return key_map(pointer, kernel.layout, kernel.options.dtype, kernel.box_tokens)


def prepare(
    options: MLAOptions,
    layout: SpanLayout,
    division: Division,
    *,
    heads: int,
    gpu: Gpu,
    splits: bool,
    cache: FileCache | None = None,
) -> PreparedMLA:
    """Return the attention of `heads` query heads over such spans on `gpu`, compiled or cached.

    With `splits`, several thread blocks share a tile's keys.
    """
    kept = cache or user_cache()
    plan = compile_variant(plan_variant(division), gpu.arch, kept)
    attend = compile_variant(attend_variant(options, division.tile), gpu.arch, kept)
    merge = None
    if splits:
        compiled = compile_variant(merge_variant(options, division.tile), gpu.arch, kept)
        grid = (min(_MERGING * gpu.sm_count, division.blocks * division.tile), 1, 1)
        launch = Launch(grid, (MERGE_THREADS, 1, 1), overlaps=True)
        merge = Call(load(compiled, gpu, MLA_MERGE), launch)
    narrow = MLA_CODES if options.codes else MLA_NARROW
    wide = MLA_SELECTED if options.selected else MLA_WIDE
    kernel = wide if division.tile == WIDEST else narrow
    blocks = (division.blocks, 1, 1)
    launch = Launch(blocks, (division.threads, 1, 1), division.shared_bytes, overlaps=True)
    planner = Launch((1, 1, 1), (PLAN_THREADS, 1, 1), overlaps=True)
    sizes = {"heads": heads, "lanes": division.lanes, "parts": division.parts, "splits": splits}
    return PreparedMLA(
        options,
        layout,
        heads,
        division,
        gpu,
        Launches([(Call(load(plan, gpu, MLA_PLAN), planner), {})], _PLAN_VALUES, sizes),
        Call(load(attend, gpu, kernel), launch),
        merge,
    )


def prepare_every_size(
    dtype: object, layout: SpanLayout, *, heads: int, gpu: Gpu, splits: bool
) -> None:
    """Compile and load the kernels that steps of any size need on `gpu`; none of other GPUs."""
    options = options_for(numpy_dtype(dtype).name, layout)
    if not takes(options, layout, gpu.arch):
        return
    least = 0 if splits else options.widest
    for tile in (tile for tile in TILES if least <= tile <= options.widest):
        division = Division(tile, lanes=1, parts=gpu.sm_count)
        prepare(options, layout, division, heads=heads, gpu=gpu, splits=splits)
