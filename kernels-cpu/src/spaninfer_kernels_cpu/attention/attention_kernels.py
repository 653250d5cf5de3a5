"""The constants of compiled attention: the kind of keys and values, the tiles of its two GEMMs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.elements import Element
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.quantisation.layout import LANES, PANEL

KEYS = 8  # in place, at a time
BLOCKS = PANEL // LANES  # of a value in place, at a time

_NARROW_ROWS = 8  # by a block: as many sums as two units of a latency of four have under way


@dataclass(frozen=True, slots=True)
class QueryTile(Constant):
    """Sums in registers: of `rows` queries by `blocks` keys, or by blocks of a value's channels."""

    kind: Element
    rows: int
    blocks: int


@dataclass(frozen=True, slots=True)
class AttentionKernels(Constant):
    """The kind of keys and values, and the micro-kernels for one row and for several: of float32,
    or of bfloat16 by pairs, to which queries, keys, values and weights are then rounded.
    """

    kind: Element
    one: MicroKernel
    many: MicroKernel

    @property
    def by_pairs(self) -> bool:
        """True if products are of bfloat16."""
        return self.many.kind == "bfloat16"

    @property
    def by_tiles(self) -> bool:
        """True if products are of bfloat16 and by AMX (`amx_block`)."""
        return self.many.uses_amx

    @property
    def is_wide(self) -> bool:
        """True if a tile is as wide as a panel."""
        return self.many.blocks > 1

    @property
    def half(self) -> MicroKernel:
        """The micro-kernel for several rows and two blocks."""
        return replace(self.many, rows=_NARROW_ROWS, blocks=2)

    @property
    def quarter(self) -> MicroKernel:
        """The micro-kernel for several rows and a block."""
        return replace(self.many, rows=_NARROW_ROWS, blocks=1)

    @property
    def key_pair(self) -> QueryTile:
        """Sums of two queries by keys in place."""
        return QueryTile(self.kind, 2, KEYS)

    @property
    def key_single(self) -> QueryTile:
        """Sums of a query by keys in place."""
        return QueryTile(self.kind, 1, KEYS)

    @property
    def value_pair(self) -> QueryTile:
        """Sums of values in place, of two queries."""
        return QueryTile(self.kind, 2, BLOCKS)

    @property
    def value_single(self) -> QueryTile:
        """Sums of values in place, of one query."""
        return QueryTile(self.kind, 1, BLOCKS)
