"""The prepared kernels of a ragged attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    Launch,
    ShapeError,
    compile_variant,
    encode_tensor_map,
    load,
    user_cache,
)

from span_attention.prefill.hopper import ARCHITECTURE
from span_attention.prefill.kernels import (
    PREFILL_GENERAL,
    PREFILL_HOPPER,
    PREFILL_PLAN,
    GeneralArguments,
    HopperArguments,
    PlanArguments,
)
from span_attention.prefill.tuning import HopperTiles, launch, plan_bytes
from span_attention.ragged.options import RaggedOptions, general_variant, hopper_variant
from span_attention.ragged.variants import PLAN

_PLAN_LAUNCH = Launch((1, 1, 1), (1024, 1, 1))


class Operands(NamedTuple):
    """Addresses and sizes of one run; strides are elements from row to row, and head to head.

    A row sees up to `ahead` rows ahead, and `window` in all back from there; 0: everything.
    """

    out: int
    query: int
    key: int
    value: int
    query_stride: int
    key_stride: int
    value_stride: int
    head_stride: int
    num_rows: int
    num_slices: int
    plan: int
    softmax_scale: float
    softcap: float
    window: int
    ahead: int
    biases: int  # by distance, `reach` at the most
    reach: int


@dataclass(frozen=True, slots=True)
class General:
    """general.cu, loaded: tiles of `lines` rows, blocks of `block` keys."""

    options: RaggedOptions
    heads: int
    kv_heads: int
    lines: int
    block: int
    call: Call[GeneralArguments]

    def start(self, stream: int, at: Operands) -> None:
        """Start the kernel."""
        head = 2 * at.head_stride  # bytes
        arguments = GeneralArguments(
            out=at.out,
            query=at.query,
            query_stride=at.query_stride,
            query_head=at.head_stride,
            span_tables=0,
            table_rows=0,
            plan=at.plan,
            num_slices=at.num_slices,
            table_stride=0,
            span_shift=0,
            heads=self.heads,
            pack=1,
            kv_heads=self.kv_heads,
            softmax_scale=at.softmax_scale,
            softcap=at.softcap,
            window=at.window,
            alibi_slopes=0,
            sinks=0,
            keys=at.key,
            key_span=0,
            key_head=head,
            key_token=2 * at.key_stride,
            key_scales=0,
            key_scales_span=0,
            key_scales_head=0,
            key_scales_token=0,
            values=at.value,
            value_span=0,
            value_head=head,
            value_token=2 * at.value_stride,
            value_scales=0,
            value_scales_span=0,
            value_scales_head=0,
            value_scales_token=0,
            lse=0,
            ahead=at.ahead,
            biases=at.biases,
            reach=at.reach,
        )
        self.call(stream, arguments)


@dataclass(frozen=True, slots=True)
class Hopper:
    """hopper.cu, loaded: tiles of `lines` rows, blocks of `block` keys."""

    options: RaggedOptions
    heads: int
    kv_heads: int
    cut: HopperTiles
    call: Call[HopperArguments]

    @property
    def lines(self) -> int:
        """Rows of a tile."""
        return self.cut.lines

    @property
    def block(self) -> int:
        """Keys of a block."""
        return self.cut.block

    def start(self, stream: int, at: Operands) -> None:
        """Start the kernel."""
        size = self.options.head_size
        query = encode_tensor_map(
            at.query,
            self.options.dtype,
            shape=(at.num_rows, self.heads, size),
            strides=(at.query_stride, at.head_stride, 1),
            box=(self.lines, 1, self.cut.row_bytes // 2),
        )
        arguments = HopperArguments(
            out=at.out,
            query_map=query,
            key_map=self._map(at.key, at, at.key_stride),
            value_map=self._map(at.value, at, at.value_stride),
            span_tables=0,
            table_rows=0,
            plan=at.plan,
            workspace=0,
            num_slices=at.num_slices,
            table_stride=0,
            span_shift=0,
            heads=self.heads,
            pack=1,
            kv_heads=self.kv_heads,
            box_tokens=self.block,
            softmax_scale=at.softmax_scale,
            softcap=at.softcap,
            window=at.window,
            alibi_slopes=0,
            sinks=0,
            lse=0,
            ahead=at.ahead,
            biases=at.biases,
            reach=at.reach,
        )
        self.call(stream, arguments)

    def _map(self, pointer: int, at: Operands, stride: int) -> bytes:
        """Return the map of keys or values as [1 K T size]: one span with all rows."""
        size = self.options.head_size
        return encode_tensor_map(
            pointer,
            self.options.dtype,
            shape=(1, self.kv_heads, at.num_rows, size),
            strides=(at.num_rows * stride, at.head_stride, stride, 1),
            box=(1, 1, self.block, self.cut.row_bytes // 2),
        )


@dataclass(frozen=True, slots=True, eq=False)
class PreparedRagged:
    """The kernels of a ragged attention, as `BatchRagged` launches them: batches of any size."""

    options: RaggedOptions
    heads: int
    kv_heads: int
    gpu: Gpu
    _kernel: General | Hopper
    _plan: Call[PlanArguments]

    def plan_bytes(self, rows: int, slices: int) -> int:
        """Return the bytes of the plan of at most that many rows and sequences."""
        return plan_bytes(rows, slices, self._kernel.lines, ratio=1, most_sharers=0)

    def plan(self, handle: int, plan: int, query_start_loc: int, slices: int) -> None:
        """Launch the plan of a batch on the stream with this handle."""
        arguments = PlanArguments(
            plan=plan,
            query_start_loc=query_start_loc,
            seq_lens=0,
            slices=slices,
            tile_rows=self._kernel.lines,
            key_block=self._kernel.block,
            window=0,
            packs=self.heads,
            most_sharers=0,
            causal=False,
        )
        self._plan(handle, arguments)

    def attend(self, handle: int, operands: Operands) -> None:
        """Launch the attention of a layer on the stream with this handle."""
        self._kernel.start(handle, operands)


def prepare(
    options: RaggedOptions,
    *,
    heads: int,
    kv_heads: int,
    gpu: Gpu,
    cache: FileCache | None = None,
) -> PreparedRagged:
    """Return the attention of `heads` query heads over packed rows on `gpu`, compiled or cached.

    Raises ShapeError or DTypeError for unsupported sizes or types.
    """
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise ShapeError(f"{heads} query heads are not a multiple of {kv_heads} key heads")
    kept = cache or user_cache()
    kernel = _on_hopper(options, heads, kv_heads, gpu, kept)
    plan = compile_variant(PLAN, gpu.arch, kept)
    return PreparedRagged(
        options,
        heads,
        kv_heads,
        gpu,
        kernel or _general(options, heads, kv_heads, gpu, kept),
        Call(load(plan, gpu, PREFILL_PLAN), _PLAN_LAUNCH),
    )


def _on_hopper(
    options: RaggedOptions, heads: int, kv_heads: int, gpu: Gpu, cache: FileCache
) -> Hopper | None:
    found = hopper_variant(options) if gpu.arch == ARCHITECTURE else None
    if found is None:
        return None
    variant, cut = found
    compiled = compile_variant(variant, gpu.arch, cache)
    grid = Launch((gpu.sm_count, 1, 1), (cut.threads, 1, 1), cut.shared_bytes, overlaps=True)
    return Hopper(options, heads, kv_heads, cut, Call(load(compiled, gpu, PREFILL_HOPPER), grid))


def _general(
    options: RaggedOptions, heads: int, kv_heads: int, gpu: Gpu, cache: FileCache
) -> General:
    variant, cut = general_variant(options, gpu.shared_bytes)
    compiled = compile_variant(variant, gpu.arch, cache)
    grid = launch(
        cut,
        registers=compiled.report.registers,
        sm_count=gpu.sm_count,
        shared_bytes=gpu.shared_bytes,
    )
    call = Call(load(compiled, gpu, PREFILL_GENERAL), grid)
    return General(options, heads, kv_heads, cut.lines, cut.block, call)
