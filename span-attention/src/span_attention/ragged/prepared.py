"""The prepared kernels of a ragged attention."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    Launch,
    Launches,
    NamedCalls,
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
)
from span_attention.prefill.tuning import HopperTiles, launch, plan_bytes
from span_attention.ragged.options import RaggedOptions, general_variant, hopper_variant
from span_attention.ragged.variants import PLAN

_PLAN_LAUNCH = Launch((1, 1, 1), (1024, 1, 1))


RUN_VALUES = "num_slices plan softmax_scale softcap window ahead"
"""What runs are given beside their arrays: a row sees up to `ahead` rows ahead, and `window` in all
back from there; 0: everything.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of query, key and value of a batch; compared by identity, as the key of their maps.

    Strides are elements from row to row, and from head to head.
    """

    number: int
    query_stride: int
    key_stride: int
    value_stride: int
    head_stride: int


@dataclass(frozen=True, slots=True)
class General:
    """general.cu, loaded: tiles of `lines` rows, blocks of `block` keys."""

    options: RaggedOptions
    heads: int
    lines: int
    block: int
    call: Call[GeneralArguments]

    def attend(self, rows: Rows) -> tuple[NamedCalls, dict[str, int]]:
        """Return the call for such rows, and constants."""
        places = {
            "query_stride": rows.query_stride,
            "query_head": rows.head_stride,
            "key_head": 2 * rows.head_stride,  # bytes
            "key_token": 2 * rows.key_stride,
            "value_head": 2 * rows.head_stride,
            "value_token": 2 * rows.value_stride,
        }
        return NamedCalls(((self.call, {"keys": "key", "values": "value"}),)), places


@dataclass(frozen=True, slots=True, eq=False)
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

    def attend(self, rows: Rows) -> tuple[NamedCalls, dict[str, int]]:
        """Return the call for such rows, and constants."""
        calls = NamedCalls.of(
            self.call,
            query_map=("query", partial(_query_map, self, rows)),
            key_map=("key", partial(_key_map, self, rows, rows.key_stride)),
            value_map=("value", partial(_key_map, self, rows, rows.value_stride)),
        )
        return calls, {"box_tokens": self.block}


@lru_cache(maxsize=4096)
def _query_map(kernel: Hopper, rows: Rows, pointer: int) -> bytes:
    """Return the map of queries at this address."""
    size = kernel.options.head_size
    return encode_tensor_map(
        pointer,
        kernel.options.dtype,
        shape=(rows.number, kernel.heads, size),
        strides=(rows.query_stride, rows.head_stride, 1),
        box=(kernel.lines, 1, kernel.cut.row_bytes // 2),
    )


@lru_cache(maxsize=4096)
def _key_map(kernel: Hopper, rows: Rows, stride: int, pointer: int) -> bytes:
    """Return the map of keys or values as [1 K T size]: one span with all rows."""
    size = kernel.options.head_size
    return encode_tensor_map(
        pointer,
        kernel.options.dtype,
        shape=(1, kernel.kv_heads, rows.number, size),
        strides=(rows.number * stride, rows.head_stride, stride, 1),
        box=(1, 1, kernel.block, kernel.cut.row_bytes // 2),
    )


@dataclass(frozen=True, slots=True, eq=False)
class PreparedRagged:
    """The kernels of a ragged attention, as `BatchRagged` launches them: batches of any size.

    `plan` divides a batch into tiles; it is given the addresses of the plan and of query_start_loc,
    and the number of slices.
    """

    options: RaggedOptions
    heads: int
    kv_heads: int
    gpu: Gpu
    plan: Launches
    _kernel: General | Hopper

    def plan_bytes(self, rows: int, slices: int) -> int:
        """Return the bytes of the plan of at most that many rows and sequences."""
        return plan_bytes(rows, slices, self._kernel.lines, ratio=1, most_sharers=0)

    def attend(self, rows: Rows) -> tuple[NamedCalls, dict[str, int]]:
        """Return the attention of a layer, which is given `RUN_VALUES`, and its constants."""
        calls, constants = self._kernel.attend(rows)
        sizes = {"heads": self.heads, "pack": 1, "kv_heads": self.kv_heads}
        return calls, _OF_SPANS | constants | sizes


_OF_SPANS: Final = dict.fromkeys(
    (
        *("span_tables", "table_rows", "table_stride", "span_shift", "workspace", "lse"),
        *("alibi_slopes", "sinks", "key_span", "value_span"),
        *(f"key_scales{of}" for of in ("", "_span", "_head", "_token")),
        *(f"value_scales{of}" for of in ("", "_span", "_head", "_token")),
    ),
    0,
)
"""What the kernels are given for spans, of which packed rows have none."""


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
    on_hopper = _on_hopper(options, heads, kv_heads, gpu, kept)
    kernel = on_hopper or _general(options, heads, gpu, kept)
    plan = Call(load(compile_variant(PLAN, gpu.arch, kept), gpu, PREFILL_PLAN), _PLAN_LAUNCH)
    constants = {
        "seq_lens": 0,
        "tile_rows": kernel.lines,
        "key_block": kernel.block,
        "window": 0,
        "packs": heads,
        "most_sharers": 0,
        "causal": False,
    }
    planning = Launches([(plan, {})], ("plan", "query_start_loc", "slices"), constants)
    return PreparedRagged(options, heads, kv_heads, gpu, planning, kernel)


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


def _general(options: RaggedOptions, heads: int, gpu: Gpu, cache: FileCache) -> General:
    variant, cut = general_variant(options, gpu.shared_bytes)
    compiled = compile_variant(variant, gpu.arch, cache)
    grid = launch(
        cut,
        registers=compiled.report.registers,
        sm_count=gpu.sm_count,
        shared_bytes=gpu.shared_bytes,
    )
    call = Call(load(compiled, gpu, PREFILL_GENERAL), grid)
    return General(options, heads, cut.lines, cut.block, call)
