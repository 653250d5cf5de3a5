"""Sampling of one size, ready to be launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from spaninfer_kernel_launch import (
    BEFORE_HOPPER,
    Call,
    FileCache,
    Gpu,
    Kernel,
    Launch,
    clusters_at_once,
    compile_variant,
    load,
    pointer_of,
    stream_handle,
    user_cache,
)

from spaninfer_kernels_cuda.sample.arguments import Pools, Report
from spaninfer_kernels_cuda.sample.kernels import (
    SAMPLE_DRAW,
    SAMPLE_REPORT,
    SAMPLE_REVISE,
    DrawArguments,
    ReportArguments,
    ReviseArguments,
    Sizes,
)
from spaninfer_kernels_cuda.sample.tuning import (
    MOST_BLOCKS,
    SHAPES,
    blocks_of_row,
    check,
    shared_bytes,
    touched_bytes,
)
from spaninfer_kernels_cuda.sample.variant import variant_for


@dataclass(frozen=True, slots=True)
class Prepared:
    """Sampling of one size, compiled and loaded: `launch` passes pointers, and nothing else.

    `workspace_bytes` is what revised rows need of 16-byte aligned memory, whatever is in it.
    """

    rows: int
    length: int
    top: int
    workspace_bytes: int
    _revise: Call[ReviseArguments] | None
    _draw: Call[DrawArguments] | None
    _report: Call[ReportArguments] | None
    row_stride: int

    def launch(
        self,
        logits: object,
        *,
        parameters: object,
        slots: object,
        positions: object,
        out: object,
        status: object,
        tokens: object = None,
        mask: object = None,
        pools: Pools | None = None,
        report: Report | None = None,
        workspace: object = None,
        stream: object = None,
    ) -> None:
        """Draw a token per row of logits[R V] into out[R] int32, its `Status` into status[R] int32.

        `parameters` are uint8[N 88], records of `PARAMETERS`; `mask` int32[N ceil(V / 32)], bit
        t % 32 of word t // 32 set where token t is allowed, read for records with `masked`.
        `tokens` int32[N token_stride] is the token buffer: what is drawn is also written to
        tokens[slot, position], and with a `workspace`, tokens[slot, :position] is what penalties
        and bans look at. Without a workspace, records must ask for neither them nor bias. With a
        `report`, log-probabilities follow. Arrays may be given as addresses. Without a stream, the
        current one of logits' framework.
        """
        if self._revise is None or self._draw is None:
            return
        handle = stream_handle(stream, logits)
        rows = _Rows(*map(pointer_of, (logits, parameters, slots, positions)))
        known, touched = pointer_of(tokens), pointer_of(workspace)
        revised = self._revised(touched)
        if touched:
            lists = pools or Pools()
            revise = ReviseArguments(
                touched=touched,
                revised=revised,
                logits=rows.logits,
                all_params=rows.parameters,
                slots=rows.slots,
                positions=rows.positions,
                tokens=known,
                bias_ids=pointer_of(lists.bias_ids),
                biases=pointer_of(lists.biases),
                word_bounds=pointer_of(lists.word_bounds),
                word_tokens=pointer_of(lists.word_tokens),
                end_ids=pointer_of(lists.end_ids),
            )
            self._revise(handle, revise)
        draw = DrawArguments(
            out=pointer_of(out),
            status=pointer_of(status),
            tokens=known,
            logits=rows.logits,
            all_params=rows.parameters,
            slots=rows.slots,
            positions=rows.positions,
            allowed=pointer_of(mask),
            touched=touched,
            revised=revised,
        )
        self.start(handle, draw)
        if report is not None:
            self.report(
                *(logits, report),
                parameters=parameters,
                slots=slots,
                positions=positions,
                drawn=out,
                status=status,
                mask=mask,
                workspace=workspace,
                stream=stream,
            )

    def report(
        self,
        logits: object,
        report: Report,
        *,
        parameters: object,
        slots: object,
        positions: object,
        drawn: object,
        status: object,
        mask: object = None,
        workspace: object = None,
        stream: object = None,
    ) -> None:
        """Write log-probabilities of the tokens drawn[R], which the last launch drew.

        The other arguments are those of that launch; `workspace` as it has left it is needed where
        a record asks for processed logits.
        """
        if self._report is None:
            return
        rows = _Rows(*map(pointer_of, (logits, parameters, slots, positions)))
        touched = pointer_of(workspace)
        arguments = ReportArguments(
            chosen=pointer_of(report.chosen),
            ranks=pointer_of(report.ranks),
            top_ids=pointer_of(report.top_ids),
            top=pointer_of(report.top),
            top_stride=self.top,
            drawn=pointer_of(drawn),
            status=pointer_of(status),
            logits=rows.logits,
            all_params=rows.parameters,
            slots=rows.slots,
            positions=rows.positions,
            allowed=pointer_of(mask),
            touched=touched,
            revised=self._revised(touched),
            length=self.length,
            stride=self.row_stride,
        )
        self._report(stream_handle(stream, logits), arguments)

    def start(self, handle: int, arguments: DrawArguments) -> None:
        """Launch the draw alone, on the stream with this handle, whichever it is."""
        if self._draw is not None:
            self._draw(handle, arguments)

    def _revised(self, touched: int) -> int:
        """Return where the revised logits of a workspace begin, behind a bit for each of them."""
        return touched + touched_bytes(self.rows, self.length) if touched else 0


class _Rows(NamedTuple):
    """Addresses of what says which rows are drawn from, and how."""

    logits: int
    parameters: int
    slots: int
    positions: int


def prepare(
    *,
    rows: int,
    length: int,
    dtype: object,
    gpu: Gpu,
    token_stride: int = 0,
    top: int = 0,
    row_stride: int | None = None,
    cache: FileCache | None = None,
) -> Prepared:
    """Return sampling from logits[rows length] on `gpu`, compiled, or from `cache`.

    `token_stride` counts elements from one row of the token buffer to the next, `row_stride` those
    from one row of logits to the next (`length` unless given); `top` is the second size of a
    report's arrays. Raises ShapeError or DTypeError for what no kernel takes, CompileError where
    there is no compiler.
    """
    check(rows, length, top)
    compiled = compile_variant(variant_for(dtype, gpu.arch), gpu.arch, cache or user_cache())
    revise, draw, report = None, None, None
    stride = length if row_stride is None else row_stride
    if rows:
        sizes = Sizes(length, stride, token_stride)
        draws = load(compiled, gpu, SAMPLE_DRAW)
        alone = Launch((1, rows, 1), (SHAPES[gpu.arch].threads, 1, 1), overlaps=True)
        together = _launch(rows, blocks_of_row(rows, _at_once(draws)), gpu)
        revise = Call(load(compiled, gpu, SAMPLE_REVISE), alone, sizes)
        draw = Call(draws, together, sizes)
        report = Call(load(compiled, gpu, SAMPLE_REPORT), together)
    return Prepared(
        rows,
        length,
        top,
        workspace_bytes=touched_bytes(rows, length) + rows * length * 4,
        _revise=revise,
        _draw=draw,
        _report=report,
        row_stride=stride,
    )


def _launch(rows: int, blocks: int, gpu: Gpu) -> Launch:
    """Return the launch in which each row has a cluster of so many blocks."""
    shape = SHAPES[gpu.arch]
    return Launch(
        *((blocks, rows, 1), (shape.threads, 1, 1)),
        shared_bytes=shared_bytes(shape),
        cluster=(blocks, 1, 1),
        overlaps=True,
    )


@lru_cache
def _at_once(kernel: Kernel[Any]) -> Mapping[int, int]:
    """Return how many clusters of 2, 3, … blocks run at the same time; none before Hopper."""
    if kernel.gpu.arch in BEFORE_HOPPER:
        return {}
    return {
        blocks: clusters_at_once(kernel, _launch(1, blocks, kernel.gpu))
        for blocks in range(2, MOST_BLOCKS + 1)
    }
