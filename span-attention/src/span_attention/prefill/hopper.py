"""The attention of Hopper: sizes, variant, tensor maps and call of hopper.cu."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    Launch,
    NamedCalls,
    Source,
    Variant,
    compile_variant,
    encode_tensor_map,
    load,
)

from span_attention.layout import ArrayStrides, SpanLayout
from span_attention.prefill.division import Division
from span_attention.prefill.kernels import PREFILL_HOPPER, HopperArguments
from span_attention.prefill.options import PrefillOptions, element_for
from span_attention.prefill.tuning import HopperTiles, hopper_tiles

ARCHITECTURE: Final = "sm_90a"
SOURCE = Source(
    "span_attention",
    "prefill/hopper.cu",
    headers=("types.cuh", "reduce.cuh", "mma.cuh", "copy.cuh", "wgmma.cuh", "overlap.cuh"),
    own=("softmax.cuh", "tiles.cuh"),
    parts=tuple(f"prefill/hopper_{part}.cuh" for part in ("task", "copies", "matmul", "parts")),
    kernels=(PREFILL_HOPPER,),
)
_ALL_SPANS: Final = 2**31 - 1  # their number is not checked, nor are the tables


@dataclass(frozen=True, slots=True, eq=False)
class Hopper:
    """hopper.cu, loaded: tiles of `lines` lines, blocks of `block` keys.

    Up to `most_sharers` thread blocks share tasks in `sharing`; where they do not, that one is 8 %
    slower than `call` (4 x 4096 rows, H200).
    """

    layout: SpanLayout
    heads: int
    lines: int
    dtype: str
    cut: HopperTiles
    most_sharers: int
    call: Call[HopperArguments]
    sharing: Call[HopperArguments] | None

    def attend(self, run: Division, query_stride: int) -> tuple[NamedCalls, dict[str, int]]:
        """Return the call of a run over queries with this stride, and constants."""
        call = self.sharing if self.sharing and run.sharers else self.call
        calls = NamedCalls.of(
            call,
            query_map=("query", partial(_query_map, self, run, query_stride)),
            key_map=("keys", partial(_span_map, self, self.layout.keys, self.layout.key_size)),
            value_map=(
                "values",
                partial(_span_map, self, self.layout.values, self.layout.value_size),
            ),
        )
        return calls, {"box_tokens": self.box_tokens}

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the partials of all parts: float32, and the softmax state of each line."""
        return 4 * self.most_sharers * self.lines * (self.layout.value_size + 2)

    @property
    def block(self) -> int:
        """Keys of a block."""
        return self.cut.block

    @property
    def box_tokens(self) -> int:
        """Tokens of one TMA copy: those of a span, or of a block if spans are longer."""
        return min(self.layout.span_len, self.block)


@lru_cache(maxsize=4096)
def _query_map(kernel: Hopper, run: Division, stride: int, pointer: int) -> bytes:
    """Return the map of the queries of a run at this address."""
    return encode_tensor_map(
        pointer,
        kernel.dtype,
        (run.num_rows, kernel.heads, kernel.layout.key_size),
        (stride, kernel.layout.key_size, 1),
        (kernel.lines // run.pack, run.pack, kernel.cut.row_bytes // 2),
    )


@lru_cache(maxsize=4096)
def _span_map(kernel: Hopper, place: ArrayStrides, size: int, pointer: int) -> bytes:
    """Return the map of keys or values as [S K L size]."""
    layout = kernel.layout
    strides = (layout.span_stride, place.head_stride, place.token_stride)
    return encode_tensor_map(
        pointer,
        kernel.dtype,
        shape=(_ALL_SPANS, layout.kv_heads, layout.span_len, size),
        strides=(*(stride // 2 for stride in strides), 1),
        box=(1, 1, kernel.box_tokens, kernel.cut.row_bytes // 2),
    )


def variant_for(
    options: PrefillOptions, layout: SpanLayout, *, splits: bool
) -> tuple[Variant, HopperTiles] | None:
    """Return the variant for spans of this layout and its tiles; None where it is not for them."""
    if layout.format.num_scales or layout.values == layout.keys:
        return None
    cut = hopper_tiles(layout.key_size, layout.value_size)
    if cut is None:
        return None
    macros: dict[str, str | int | bool] = {
        "T": element_for(options, layout.format).name,
        "KEY_SIZE": layout.key_size,
        "VALUE_SIZE": layout.value_size,
        "ROW_BYTES": cut.row_bytes,
        "BLOCK": cut.block,
        "CONSUMERS": cut.consumers,
        "STAGES": cut.stages,
        "QUERY_STAGES": cut.query_stages,
        "KEEPS": cut.keeps,
        "LEAVES": cut.leaves,
        "SPLITS": splits,
        "LSE": options.lse,
        "RAGGED": False,
        "WIDTH": layout.value_size,
        "BIASED": False,
    }
    return Variant.of("prefill_hopper", SOURCE, macros, (ARCHITECTURE,)), cut


def prepare(
    options: PrefillOptions,
    layout: SpanLayout,
    heads: int,
    gpu: Gpu,
    cache: FileCache,
    *,
    splits: bool,
) -> Hopper | None:
    """Return the loaded kernel, compiled or cached; None for sizes that it does not take."""
    cut = hopper_tiles(layout.key_size, layout.value_size)
    plain = _load(options, layout, gpu, cache, splits=False)
    if plain is None or cut is None:
        return None
    return Hopper(
        layout,
        heads,
        cut.lines,
        options.dtype,
        cut,
        most_sharers=gpu.sm_count if splits else 0,
        call=plain,
        sharing=_load(options, layout, gpu, cache, splits=True) if splits else None,
    )


def _load(
    options: PrefillOptions, layout: SpanLayout, gpu: Gpu, cache: FileCache, *, splits: bool
) -> Call[HopperArguments] | None:
    found = variant_for(options, layout, splits=splits) if gpu.arch == ARCHITECTURE else None
    if found is None:
        return None
    variant, cut = found
    compiled = compile_variant(variant, gpu.arch, cache)
    grid = Launch((gpu.sm_count, 1, 1), (cut.threads, 1, 1), cut.shared_bytes, overlaps=True)
    return Call(load(compiled, gpu, PREFILL_HOPPER), grid)
