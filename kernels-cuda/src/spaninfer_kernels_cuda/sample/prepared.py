"""Sampling of one size, ready to be launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from spaninfer_kernel_launch import (
    BEFORE_HOPPER,
    Call,
    FileCache,
    Gpu,
    Kernel,
    Launch,
    NamedCalls,
    clusters_at_once,
    compile_variant,
    element_of,
    load,
    pointer_of,
    stream_handle,
    user_cache,
)

from spaninfer_kernels_cuda.sample.arguments import Busy, Logprobs, SampleBatch, TokenLists
from spaninfer_kernels_cuda.sample.kernels import (
    SAMPLE_LOGPROBS,
    SAMPLE_PENALTIES,
    SAMPLE_TOKENS,
    SAMPLE_TYPICAL,
    LogprobArguments,
    PenaltyArguments,
    Sizes,
    TokenArguments,
    TypicalArguments,
)
from spaninfer_kernels_cuda.sample.tuning import (
    SHAPES,
    blocks_of_row,
    changed_bytes,
    check,
    cluster_sizes,
    held_packs,
    kept_bytes,
    shared_bytes,
)
from spaninfer_kernels_cuda.sample.variant import variant_for

ArgumentsT = TypeVar("ArgumentsT", bound=tuple[Any, ...])


class _Shared(Generic[ArgumentsT]):
    """A kernel in which a cluster of blocks shares each row: the fewer rows have work, the more.

    Where few rows have work, there are as many clusters as run at the same time, and the kernel
    finds the rows: 6 of 64 rows that want log-probabilities have 8 blocks each, where 64 leave 2.
    Blocks hold a row in shared memory where it has the room.
    """

    def __init__(
        self, kernel: Kernel[ArgumentsT], rows: int, row_bytes: int, *constants: tuple[Any, ...]
    ) -> None:
        self._kernel, self._rows, self._constants = kernel, rows, constants
        self._row_bytes = row_bytes
        self._calls: dict[int, Call[ArgumentsT]] = {}  # by blocks of a row

    def __call__(self, stream: int, arguments: ArgumentsT, busy: int | None = None) -> None:
        """Launch it for all rows, of which `busy` have work; all unless given."""
        working = self._rows if busy is None else max(min(busy, self._rows), 1)
        at_once = _at_once(self._kernel)
        blocks = blocks_of_row(working, at_once)
        call = self._calls.get(blocks)
        if call is None:
            clusters = min(at_once.get(blocks, self._rows), self._rows)
            launch = _launch(clusters, blocks, self._kernel.gpu, self._row_bytes)
            call = self._calls[blocks] = Call(self._kernel, launch, *self._constants)
        call(stream, arguments)


@dataclass(frozen=True, slots=True)
class PreparedSample:
    """Sampling of one size.

    `workspace_bytes` and `kept_bytes` are the sizes of a batch's workspace and of what typical_p
    keeps, 16-byte aligned, with any content.
    """

    rows: int
    length: int
    top: int
    workspace_bytes: int
    kept_bytes: int
    _penalize: Call[PenaltyArguments] | None
    _keep_typical: _Shared[TypicalArguments] | None
    _sample: Call[TokenArguments] | None
    _logprobs: _Shared[LogprobArguments] | None
    row_stride: int

    def launch(
        self,
        batch: SampleBatch,
        *,
        out: tuple[object, object],
        tokens: object = None,
        lists: TokenLists | None = None,
        logprobs: Logprobs | None = None,
        busy: Busy | None = None,
        stream: object = None,
    ) -> None:
        """Sample a token per row into out[0][R] int32, and its `Status` into out[1][R] int32.

        `tokens` int32[N token_stride] is the token buffer: a sampled token is also written to
        tokens[slot, position], and with a workspace, penalties and bad words read its row up to
        there. Without a workspace, records must request neither them nor bias, without `kept` no
        typical_p. With `logprobs`, log-probabilities follow. `busy` says how many rows ask for
        what, where not all do.
        """
        if self._penalize is None or self._keep_typical is None:
            return
        handle, rows = stream_handle(stream, batch.logits), self._addresses(batch)
        known = pointer_of(tokens)
        if rows.changed:
            self._penalize(handle, _penalties(rows, known, lists or TokenLists()))
        if rows.kept:
            self._keep_typical(handle, _typical(rows, self.rows), busy and busy.typical)
        arguments = TokenArguments(
            out=pointer_of(out[0]),
            status=pointer_of(out[1]),
            tokens=known,
            logits=rows.logits,
            all_params=rows.parameters,
            slots=rows.slots,
            positions=rows.positions,
            allowed=rows.mask,
            kept=rows.kept,
            changed=rows.changed,
            processed=rows.processed,
        )
        self.start(handle, arguments)
        if logprobs is not None:
            asked = busy and busy.logprobs
            self.compute_logprobs(batch, logprobs, sampled=out, busy=asked, stream=stream)

    def compute_logprobs(
        self,
        batch: SampleBatch,
        logprobs: Logprobs,
        *,
        sampled: tuple[object, object],
        busy: int | None = None,
        stream: object = None,
    ) -> None:
        """Write log-probabilities of the tokens that the last launch sampled.

        Batch and `sampled` (that launch's `out`) are as for it; the workspace, as the launch has
        left it, is needed where a record requests processed logits. Of the rows, `busy` have a
        record that requests any; all unless given.
        """
        if self._logprobs is None:
            return
        rows = self._addresses(batch)
        arguments = LogprobArguments(
            chosen=pointer_of(logprobs.chosen),
            ranks=pointer_of(logprobs.ranks),
            top_ids=pointer_of(logprobs.top_ids),
            top=pointer_of(logprobs.top),
            top_stride=self.top,
            sampled=pointer_of(sampled[0]),
            status=pointer_of(sampled[1]),
            logits=rows.logits,
            all_params=rows.parameters,
            slots=rows.slots,
            positions=rows.positions,
            allowed=rows.mask,
            changed=rows.changed,
            processed=rows.processed,
            rows=self.rows,
            length=self.length,
            stride=self.row_stride,
        )
        self._logprobs(stream_handle(stream, batch.logits), arguments, busy)

    def start(self, handle: int, arguments: TokenArguments) -> None:
        """Launch sample_tokens alone on the stream with this handle, the default one included."""
        if self._sample is not None:
            self._sample(handle, arguments)

    def by_name(self, names: Mapping[str, str]) -> NamedCalls:
        """Return sample_tokens alone, its values named as its arguments but for these."""
        return NamedCalls(((self._sample, names),) if self._sample else ())

    def _addresses(self, batch: SampleBatch) -> _Addresses:
        """Return addresses; a workspace holds a bit per changed logit, then processed logits."""
        logits, parameters, slots, positions, mask, changed, kept = map(pointer_of, batch)
        processed = changed + changed_bytes(self.rows, self.length) if changed else 0
        return _Addresses(logits, parameters, slots, positions, mask, changed, processed, kept)


class _Addresses(NamedTuple):
    """Addresses of a batch's arrays; 0 for those not given."""

    logits: int
    parameters: int
    slots: int
    positions: int
    mask: int
    changed: int
    processed: int
    kept: int


def _typical(rows: _Addresses, count: int) -> TypicalArguments:
    """Return the arguments of sample_typical."""
    return TypicalArguments(
        kept=rows.kept,
        logits=rows.logits,
        all_params=rows.parameters,
        slots=rows.slots,
        positions=rows.positions,
        allowed=rows.mask,
        changed=rows.changed,
        processed=rows.processed,
        rows=count,
    )


def _penalties(rows: _Addresses, tokens: int, lists: TokenLists) -> PenaltyArguments:
    """Return the arguments of sample_penalties."""
    return PenaltyArguments(
        changed=rows.changed,
        processed=rows.processed,
        logits=rows.logits,
        all_params=rows.parameters,
        slots=rows.slots,
        positions=rows.positions,
        tokens=tokens,
        bias_ids=pointer_of(lists.bias_ids),
        biases=pointer_of(lists.biases),
        word_bounds=pointer_of(lists.word_bounds),
        word_tokens=pointer_of(lists.word_tokens),
        end_ids=pointer_of(lists.end_ids),
    )


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
) -> PreparedSample:
    """Return sampling from logits[rows length] on `gpu`, compiled or cached.

    `token_stride` counts elements from one row of the token buffer to the next, `row_stride` those
    from one row of logits to the next (`length` unless given); `top` is the row size of
    `Logprobs.top`. Raises ShapeError or DTypeError for unsupported sizes or types, CompileError
    where there is no compiler.
    """
    check(rows, length, top)
    compiled = compile_variant(variant_for(dtype, gpu.arch), gpu.arch, cache or user_cache())
    penalize, keep_typical, sample, logprobs = None, None, None, None
    stride = length if row_stride is None else row_stride
    if rows:
        sizes = Sizes(length, stride, token_stride)
        sampler = load(compiled, gpu, SAMPLE_TOKENS)
        alone = Launch((1, rows, 1), (SHAPES[gpu.arch].threads, 1, 1), overlaps=True)
        together = _launch(rows, blocks_of_row(rows, _at_once(sampler)), gpu)
        penalize = Call(load(compiled, gpu, SAMPLE_PENALTIES), alone, sizes)
        row_bytes = length * element_of(dtype).itemsize
        keep_typical = _Shared(load(compiled, gpu, SAMPLE_TYPICAL), rows, row_bytes, sizes)
        sample = Call(sampler, together, sizes)
        logprobs = _Shared(load(compiled, gpu, SAMPLE_LOGPROBS), rows, row_bytes)
    return PreparedSample(
        rows,
        length,
        top,
        workspace_bytes=changed_bytes(rows, length) + rows * length * 4,
        kept_bytes=kept_bytes(rows, length * element_of(dtype).itemsize),
        _penalize=penalize,
        _keep_typical=keep_typical,
        _sample=sample,
        _logprobs=logprobs,
        row_stride=stride,
    )


def _launch(rows: int, blocks: int, gpu: Gpu, held_bytes: int = 0) -> Launch:
    """Return the launch in which each row has a cluster of that many blocks, which hold rows of
    `held_bytes` if they can.
    """
    shape = SHAPES[gpu.arch]
    needed = shared_bytes(shape, held_packs(held_bytes, blocks, shape.threads))
    return Launch(
        (blocks, rows, 1),
        (shape.threads, 1, 1),
        shared_bytes=needed if needed <= gpu.shared_bytes else shared_bytes(shape),
        cluster=(blocks, 1, 1),
        overlaps=True,
    )


@lru_cache
def _at_once(kernel: Kernel[Any]) -> Mapping[int, int]:
    """Return how many clusters of 2, 3, … blocks run at the same time; none before Hopper."""
    arch = kernel.gpu.arch
    if arch in BEFORE_HOPPER:
        return {}
    return {
        blocks: clusters_at_once(kernel, _launch(1, blocks, kernel.gpu))
        for blocks in cluster_sizes(arch, typical=kernel.signature.entry == SAMPLE_TYPICAL.entry)
    }
