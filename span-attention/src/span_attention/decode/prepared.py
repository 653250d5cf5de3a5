"""The prepared kernels of a decode."""

from __future__ import annotations

from dataclasses import dataclass

from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    Launch,
    Launches,
    NamedCalls,
    blocks_at_once,
    compile_variant,
    load,
    user_cache,
)

from span_attention.decode import tuning as sizes
from span_attention.decode.kernels import (
    DECODE_ATTEND,
    DECODE_PLAN,
    AttendArguments,
)
from span_attention.decode.tuning import PLAN_THREADS, Tuning, tune
from span_attention.decode.variant import PLAN, DecodeOptions, variant_for
from span_attention.layout import SpanLayout


@dataclass(frozen=True, slots=True, eq=False)
class PreparedDecode:
    """The kernels of a decode of that many sequences, as `BatchDecode` launches them.

    `plan_bytes` and `workspace_bytes` are the sizes of plan and workspace, 16-byte aligned, with
    any content. One workspace serves all layers, one plan those of one window.
    """

    options: DecodeOptions
    layout: SpanLayout
    requests: int
    heads: int
    tuning: Tuning
    gpu: Gpu
    plan_bytes: int
    workspace_bytes: int
    _plan: Launches | None
    _attend: Call[AttendArguments] | None

    @property
    def result_alignment(self) -> int:
        """Bytes of a result that a lane writes at once."""
        return 8

    def plan(self, handle: int, plan: int, seq_lens: int, window: int) -> None:
        """Divide the tokens of seq_lens[R] among the blocks of launches to come."""
        if self._plan is not None:
            self._plan.start(handle, (plan, seq_lens, window))

    @property
    def attend(self) -> NamedCalls:
        """The attention of a layer."""
        return NamedCalls.of(self._attend)


def prepare(
    options: DecodeOptions,
    layout: SpanLayout,
    *,
    requests: int,
    heads: int,
    gpu: Gpu,
    cache: FileCache | None = None,
    tuning: Tuning | None = None,
) -> PreparedDecode:
    """Return the decode of `requests` requests with `heads` query heads, compiled or cached.

    Raises ShapeError or DTypeError for unsupported sizes or types.
    """
    tuning = tuning or tune(layout, heads, requests)
    variant = variant_for(options, layout, tuning)
    kept = cache or user_cache()
    blocks, plan, attend = 0, None, None
    if requests:
        planner = load(compile_variant(PLAN, gpu.arch, kept), gpu, DECODE_PLAN)
        kernel = load(compile_variant(variant, gpu.arch, kept), gpu, DECODE_ATTEND)
        block = (32 * tuning.warps, 1, 1)
        blocks = blocks_at_once(kernel, Launch((1, 1, 1), block))
        attend = Call(kernel, Launch((blocks, 1, 1), block, overlaps=True))
        planning = Call(planner, Launch((1, 1, 1), (PLAN_THREADS, 1, 1), overlaps=True))
        constants = {
            "requests": requests,
            "items": sizes.items(layout, heads, tuning),
            "tile_tokens": tuning.tile_tokens,
            "most_warps": blocks * tuning.warps,
            "most_blocks": blocks,
        }
        plan = Launches([(planning, {})], ("totals", "seq_lens", "window"), constants)
    return PreparedDecode(
        options,
        layout,
        requests,
        heads,
        tuning,
        gpu,
        plan_bytes=sizes.plan_bytes(requests, tuning, blocks),
        workspace_bytes=sizes.workspace_bytes(layout, tuning, blocks),
        _plan=plan,
        _attend=attend,
    )
