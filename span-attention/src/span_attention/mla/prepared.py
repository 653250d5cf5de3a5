"""The prepared kernels of latent attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    Launch,
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
    AttendArguments,
    CodesArguments,
    MergeArguments,
    PlanArguments,
    SelectedArguments,
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
from span_attention.spans import Spans

_MERGING: Final = 8  # thread blocks of mla_merge per multiprocessor


class Run(NamedTuple):
    """Addresses and sizes of one run; see `BatchMLA`."""

    out: int
    lse: int
    query: int
    num_tokens: int
    spans: Spans
    span_tables: int
    table_stride: int
    plan: int
    workspace: int
    softmax_scale: float
    lines_of_position: int
    selected: tuple[int, int] = (0, 0)  # positions, and how many a token has


@dataclass(frozen=True, slots=True, eq=False)
class PreparedMLA:
    """The kernels of latent attention for one division, as `BatchMLA` launches them.

    `maps` are the tensor maps of latents by address: those of a layer never change.
    """

    options: MLAOptions
    layout: SpanLayout
    heads: int
    division: Division
    gpu: Gpu
    _plan: Call[PlanArguments]
    _attend: Call[Any]  # of AttendArguments, CodesArguments or SelectedArguments
    _merge: Call[MergeArguments] | None
    maps: dict[int, bytes] = field(default_factory=dict)

    @property
    def result_alignment(self) -> int:
        """Bytes of a result that are written at once."""
        return 8

    def plan(self, handle: int, arguments: PlanArguments) -> None:
        """Launch the plan of a step on the stream with this handle."""
        self._plan(handle, arguments)

    def attend(self, handle: int, run: Run) -> None:
        """Launch the attention of a layer, and the merge of its parts."""
        if self.options.selected:
            self._attend(handle, self._selected_arguments(run))
        elif self.options.codes:
            self._attend(handle, self._codes_arguments(run))
        else:
            self._attend(handle, self._arguments(run))
        if self._merge is not None:
            division = self.division
            merge = MergeArguments(
                run.out, run.lse, run.workspace, run.plan, division.parts, division.lanes
            )
            self._merge(handle, merge)

    def _arguments(self, run: Run) -> AttendArguments:
        return AttendArguments(
            out=run.out,
            lse=run.lse,
            parts=run.workspace,
            plan=run.plan,
            query_map=self.query_map(run.query, run.num_tokens),
            key_map=self.key_map(run.spans),
            span_tables=run.span_tables,
            table_stride=run.table_stride,
            span_shift=self.layout.span_len.bit_length() - 1,
            box_tokens=self.box_tokens,
            softmax_scale=run.softmax_scale,
            num_parts=self.division.parts,
            lines_of_position=run.lines_of_position,
            lanes=self.division.lanes,
        )

    def _codes_arguments(self, run: Run) -> CodesArguments:
        return CodesArguments(
            out=run.out,
            lse=run.lse,
            parts=run.workspace,
            plan=run.plan,
            query_map=self.query_map(run.query, run.num_tokens),
            codes=run.spans.places[0],
            scales=run.spans.scale_places[0],
            span_stride=self.layout.span_stride,
            span_tables=run.span_tables,
            table_stride=run.table_stride,
            span_shift=self.layout.span_len.bit_length() - 1,
            softmax_scale=run.softmax_scale,
            num_parts=self.division.parts,
            lines_of_position=run.lines_of_position,
            lanes=self.division.lanes,
        )

    def _selected_arguments(self, run: Run) -> SelectedArguments:
        layout, (selected, most) = self.layout, run.selected
        return SelectedArguments(
            out=run.out,
            lse=run.lse,
            parts=run.workspace,
            plan=run.plan,
            query_map=self.query_map(run.query, run.num_tokens),
            keys=run.spans.places[0],
            span_stride=layout.span_stride,
            token_stride=layout.keys.token_stride,
            span_tables=run.span_tables,
            table_stride=run.table_stride,
            span_shift=layout.span_len.bit_length() - 1,
            selected=selected,
            most=most,
            heads=self.heads,
            softmax_scale=run.softmax_scale,
            num_parts=self.division.parts,
            lines_of_position=run.lines_of_position,
            lanes=self.division.lanes,
        )

    @property
    def box_tokens(self) -> int:
        """Tokens of one TMA copy: those of a span, or of a block if spans are longer."""
        return min(self.layout.span_len, BLOCK)

    def query_map(self, query: int, num_tokens: int) -> bytes:
        """Return the map of query[T H D] as lines."""
        lines, size = num_tokens * self.heads, self.layout.key_size
        return line_map(query, self.options.dtype, lines, size, self.division.tile)

    def key_map(self, spans: Spans) -> bytes:
        """Return the map of a layer's latents as [S L D], and keep it."""
        keys, _ = spans.places
        if keys not in self.maps:
            self.maps[keys] = key_map(spans, self.options.dtype, self.box_tokens)
        return self.maps[keys]


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
    return PreparedMLA(
        options,
        layout,
        heads,
        division,
        gpu,
        Call(load(plan, gpu, MLA_PLAN), Launch((1, 1, 1), (PLAN_THREADS, 1, 1), overlaps=True)),
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
