"""The prepared kernels of a prefill."""

from __future__ import annotations

from dataclasses import dataclass

from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    Launch,
    Launches,
    NamedCalls,
    ShapeError,
    compile_variant,
    load,
    user_cache,
)

from span_attention.layout import SpanLayout
from span_attention.prefill import general, hopper
from span_attention.prefill.division import Division
from span_attention.prefill.kernels import PREFILL_PLAN
from span_attention.prefill.options import PrefillOptions
from span_attention.prefill.tuning import heads_of_shared_tile, heads_of_tile, plan_bytes
from span_attention.prefill.variants import PLAN

_PLAN_LAUNCH = Launch((1, 1, 1), (1024, 1, 1))


_PLAN_VALUES = (
    *("plan", "query_start_loc", "seq_lens", "window"),
    *("slices", "tile_rows", "packs", "most_sharers", "causal"),
)
"""What plans are given: addresses and the window, then what `sizes_of_plan` returns."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedPrefill:
    """The kernels of prefill for one layout, as `BatchPrefill` launches them.

    It serves steps of any size; `heads` is the number of query heads, `gpu` where it is loaded.
    `plan` divides a step into tiles; it is given the addresses of the plan, query_start_loc and
    seq_lens, the window, and `sizes_of_plan`.
    """

    options: PrefillOptions
    layout: SpanLayout
    heads: int
    gpu: Gpu
    plan: Launches
    _kernel: general.General | hopper.Hopper

    @property
    def result_alignment(self) -> int:
        """Bytes of a result that are written at once."""
        return 16

    def plan_bytes(self, rows: int, slices: int) -> int:
        """Return the bytes of the plan of at most that many rows and slices."""
        ratio = self.heads // self.layout.kv_heads
        return plan_bytes(rows, slices, self._kernel.lines, ratio, self._kernel.most_sharers)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the workspace of any launch, 0 unless prepared with `splits`."""
        return self._kernel.workspace_bytes

    def sizes_of_plan(self, run: Division, *, causal: bool) -> tuple[int, ...] | None:
        """Return what a step's plan is made from beside addresses; None for a step of nothing."""
        if not run.num_rows or not run.slices:
            return None
        tile_rows, packs = self._kernel.lines // run.pack, self.heads // run.pack
        return run.slices, tile_rows, packs, run.sharers, causal

    def attend(self, run: Division, query_stride: int) -> tuple[NamedCalls, dict[str, int]]:
        """Return the attention of a layer over queries with this stride, and its constants."""
        if not run.num_rows or not run.slices:
            return NamedCalls(), {}
        calls, constants = self._kernel.attend(run, query_stride)
        constants |= {
            "span_shift": self.layout.span_len.bit_length() - 1,
            "heads": self.heads,
            "kv_heads": self.layout.kv_heads,
            **dict.fromkeys(("ahead", "biases", "reach"), 0),
        }
        return calls, constants

    def divide(self, num_rows: int, slices: int) -> Division:
        """Return the division of a step of that many rows and slices among thread blocks."""
        return Division(num_rows, slices, self._pack(num_rows, slices), self._sharers(num_rows))

    def _pack(self, num_rows: int, slices: int) -> int:
        """Return the number of heads that share a tile."""
        ratio, lines = self.heads // self.layout.kv_heads, self._kernel.lines
        if self._sharers(num_rows) > 0:
            return heads_of_shared_tile(ratio, lines, rows=num_rows, slices=slices)
        return heads_of_tile(
            ratio,
            lines,
            rows=num_rows,
            slices=slices,
            kv_heads=self.layout.kv_heads,
            sm_count=self.gpu.sm_count,
        )

    def _sharers(self, num_rows: int) -> int:
        """Return the blocks that may share tasks: 0 where tasks are more than half as many.

        A task has at most a tile full of lines.
        """
        few = 2 * num_rows * self.heads <= self._kernel.most_sharers * self._kernel.lines
        return self._kernel.most_sharers if few else 0


def has_hopper_kernel(options: PrefillOptions, layout: SpanLayout, gpu: Gpu) -> bool:
    """Return True if hopper.cu reads spans of this layout on this GPU."""
    is_hopper = gpu.arch == hopper.ARCHITECTURE
    return is_hopper and hopper.variant_for(options, layout, splits=False) is not None


def prepare(
    options: PrefillOptions,
    layout: SpanLayout,
    *,
    heads: int,
    gpu: Gpu,
    splits: bool = False,
    cache: FileCache | None = None,
) -> PreparedPrefill:
    """Return the attention of `heads` query heads over such spans on `gpu`, compiled or cached.

    With `splits`, few rows of a long context are shared among all multiprocessors where the kernel
    can; a row's last bits then depend on the rest of the step; without it, they do not. Raises
    ShapeError or DTypeError for unsupported sizes or types.
    """
    if heads < 1 or heads % layout.kv_heads:
        raise ShapeError(f"{heads} query heads are not a multiple of {layout.kv_heads} key heads")
    kept = cache or user_cache()
    on_hopper = hopper.prepare(options, layout, heads, gpu, kept, splits=splits)
    kernel = on_hopper or general.prepare(options, layout, heads, gpu, kept)
    plan = compile_variant(PLAN, gpu.arch, kept)
    call = Call(load(plan, gpu, PREFILL_PLAN), _PLAN_LAUNCH)
    planning = Launches([(call, {})], _PLAN_VALUES, {"key_block": kernel.block})
    return PreparedPrefill(options, layout, heads, gpu, planning, kernel)
