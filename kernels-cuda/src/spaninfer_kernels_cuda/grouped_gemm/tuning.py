"""Shape of a grouped GEMM -> tile and grid. Pure: of what experts get, only the mean is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from spaninfer_kernel_launch import Launch, ShapeError

MAX_EXPERTS: Final = 1024
CHUNK: Final = 64  # elements of K
BLOCK_ROWS: Final = 64  # of x, or of the weight, that a wgmma has
SIXTEEN_ROWS: Final = 16  # of x, of which a wgmma of swapped_prompt.cu has multiples

_WARP = 32
_LINE_BYTES = 2 * CHUNK
GROUP_THREADS = 128
_PROMPT_GROUPS = 2  # of consumers in a block of prompt.cu
_BARRIER_BYTES = 16  # of a stage
_NUMBER_BYTES = 4  # of a stage of prompt.cu: the task whose first chunk it holds
SOURCE_BYTES = 4  # the number of a row of x that is gathered
_CURRENT_BYTES = 32  # of a block of prompt.cu: the number of the task that is copied, alignment
_EXPERT_BYTES = 8  # two prefixes; totals of 32 experts come on top
_SM_BYTES = 228 * 1024  # of shared memory on Hopper; a block's share is 1 KB less
_RESERVED_BYTES = 1024  # of an SM, for each of its blocks
_GENERAL_ROWS, _GENERAL_THREADS = 128, 256
_GENERAL_STAGES = 4  # at most
# The mean of rows up to which weights are streamed: at 32 rows of each, prompt.cu reads weights as
# fast, and x less often (docs/decisions/0037).
_STREAMED_ROWS = 20
# Rows of x that experts have at most and on average, and groups, of the tiles of stream.cu. An
# expert has no more rows than there are tokens; one with more than 64 has several tiles. At two
# rows of each, 8 tokens of Mixtral take 633 µs in the second, 639 in the first (H200, 2026-11-29).
_STREAMS = (
    (8, 1.5, 1),
    (16, _STREAMED_ROWS, 2),
    (32, _STREAMED_ROWS, 2),
    (64, _STREAMED_ROWS, 2),
)
_STREAM_BLOCKS = 2  # of an SM
# Up to so many rows of an expert are copied one by one while their weights are read, and narrower
# tiles end the launch sooner; the latter also where there are more.
_GATHERED_ROWS, _NARROW_ROWS = 64, 100
# Means at which many experts have more rows than 128, few more than 192: one tile has them all, and
# passes its weight once.
_ONE_TILE_ROWS = 160
_ENOUGH_TASKS = 512  # four for each SM
_LONG_ROWS = 4096  # elements of a weight's rows, for swapped tiles
_FEW_ROWS = 8  # of an expert, on average, for the narrower tile of general.cu
_GENERAL_BLOCKS = 4  # of an SM: more than run at a time, so that none is idle
_MAX_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of out[rows columns] = x[sources inner] . weight[experts outputs inner], by expert.

    `rows` counts pairs of a token and one of its `chosen` experts; with a gate there are half as
    many columns as outputs. The last `shared` experts have all tokens, so that theirs are the
    longest tasks: they come first. Behind the others, 64 tokens of DeepSeek-V2-Lite's layer take
    304 µs for 280, 128 take 332 for 297, 512 take 334 for 321 (H200, 2026-11-29).
    """

    rows: int
    chosen: int
    experts: int
    outputs: int
    inner: int
    shared: int = 0

    def tasks(self, rows: int, outputs: int) -> int:
        """Return how many tiles there are at most, whatever experts get."""
        most = min(self.experts, self.rows)  # experts with rows
        return (self.rows + most * (rows - 1)) // rows * -(-self.outputs // outputs)


@dataclass(frozen=True, slots=True)
class Stream:
    """A tile of stream.cu: its macros.

    Up to `tokens` rows of x by 64 rows of the weight for each of `groups`; `blocks` run on an SM.
    """

    tokens: int
    groups: int
    stages: int
    blocks: int

    @property
    def outputs(self) -> int:
        """Rows of the weight."""
        return self.groups * BLOCK_ROWS

    @property
    def threads(self) -> int:
        """Threads of a block, the producer warp included."""
        return self.groups * GROUP_THREADS + _WARP

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage."""
        return (self.outputs + self.tokens) * _LINE_BYTES + _BARRIER_BYTES


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tile of prompt.cu, or of swapped_prompt.cu (`swapped`): its macros.

    Up to `row_blocks` times 64 rows of x by `outputs` rows of the weight. Two warpgroups share the
    former (`by_rows`) or the latter. Tokens that come through an order are copied one by one
    (`gathers`), or are sorted first. Swapped, rows of x are multiplied in sixteens, and an expert's
    tiles have equal shares of them.
    """

    row_blocks: int
    outputs: int
    stages: int
    by_rows: bool = True
    gathers: bool = False
    swapped: bool = False
    blocks: int = 1

    @property
    def tokens(self) -> int:
        """Rows of x."""
        return self.row_blocks * BLOCK_ROWS

    @property
    def share(self) -> int:
        """Tiles of an expert have equal multiples of so many rows; 0: all but the last are full."""
        return SIXTEEN_ROWS if self.swapped else 0

    def box_rows(self, *, gathers: bool) -> int:
        """Return the rows of x that a copy brings; with `gathers` they come through an order."""
        if self.swapped:
            return SIXTEEN_ROWS
        return 1 if gathers and self.gathers else BLOCK_ROWS

    @property
    def threads(self) -> int:
        """Threads of a block, the producer group included."""
        return (1 + _PROMPT_GROUPS) * GROUP_THREADS

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage."""
        return (self.outputs + self.tokens) * _LINE_BYTES + _BARRIER_BYTES + _NUMBER_BYTES

    @property
    def fixed_bytes(self) -> int:
        """Shared memory beside stages."""
        return _CURRENT_BYTES + (SOURCE_BYTES * self.tokens if self.gathers else 0)


@dataclass(frozen=True, slots=True)
class General:
    """A tile of general.cu: its macros. `tokens` rows of x by 128 rows of the weight."""

    tokens: int
    stages: int
    blocks: int = _GENERAL_BLOCKS

    @property
    def outputs(self) -> int:
        """Rows of the weight."""
        return _GENERAL_ROWS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return _GENERAL_THREADS

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage."""
        return (self.outputs + self.tokens) * _LINE_BYTES


Tile: TypeAlias = Stream | Prompt | General


def check(shape: Shape, *, gated: bool) -> None:
    """Raise ShapeError for unsupported sizes."""
    if not 1 <= shape.experts <= MAX_EXPERTS:
        raise ShapeError(f"{shape.experts} experts; at least 1, at most {MAX_EXPERTS}")
    if not 1 <= shape.chosen <= shape.experts:
        raise ShapeError(f"{shape.chosen} experts chosen of {shape.experts}")
    if not 0 <= shape.shared < shape.chosen:
        raise ShapeError(
            f"{shape.shared} experts are shared; at least 0, fewer than the {shape.chosen} chosen"
        )
    multiple = 16 if gated else 8
    if shape.outputs < multiple or shape.outputs % multiple:
        raise ShapeError(
            f"an expert has {shape.outputs} rows; a multiple of {multiple}, at least {multiple}"
        )
    if shape.inner < 8 or shape.inner % 8:
        raise ShapeError(f"rows have {shape.inner} elements; a multiple of 8, at least 8")
    if shape.tasks(8, BLOCK_ROWS) > _MAX_BYTES:
        raise ShapeError(
            f"{shape.rows} rows by {shape.outputs} outputs are too many for one launch"
        )


def choose(shape: Shape, arch: str, shared_bytes: int, *, gathers: bool = False) -> Tile:
    """Return the tile for `shape` on GPUs of `arch` whose blocks may have `shared_bytes`.

    With `gathers` rows of x come through an order.
    """
    mean = shape.rows / shape.experts
    if arch != "sm_90a":
        tokens = 16 if mean <= _FEW_ROWS else 64
        room = (shared_bytes - experts_bytes(shape.experts)) // 2  # so that two run on an SM
        return General(tokens, max(2, min(_GENERAL_STAGES, room // General(tokens, 1).stage_bytes)))
    if mean <= _STREAMED_ROWS:
        tokens = -(-shape.rows // shape.chosen)
        fitting = (each for each in _STREAMS if tokens <= each[0] and mean <= each[1])
        most, _, groups = next(fitting, _STREAMS[-1])
        return fill_stream(Stream(most, groups, 0, _STREAM_BLOCKS), shape.experts)
    return fill_prompt(_prompt(shape, mean, gathers=gathers), shape.experts, shared_bytes)


def _prompt(shape: Shape, mean: float, *, gathers: bool) -> Prompt:
    """Return the tile for experts with `mean` rows of x, its stages not counted yet.

    Swapped tiles multiply less padding and use each byte more often, but their results come
    transposed: eight lanes exchange them in place of four, while nothing is multiplied. Over 64
    chunks of K or more that pays, over 12 to 32 it does not: whole layers of Mixtral take 0.84 to
    0.98 of the time of the other tiles, of Qwen3 and DeepSeek-V2-Lite 0.97 to 1.07 (H200,
    2026-11-29, docs/decisions/0041).

    The others, in µs of both GEMMs beside those of sorted tiles of 128 by 256, the copy included
    (H200, 2026-11-23): gathered 196 for 207 (first GEMM of Qwen3, 512 tokens) and 213 for 233
    (1024); 128 by 128 215 and 109 for 224 and 110 (DeepSeek-V2-Lite, 1024); 256 by 192 276 and 136
    for 300 and 147 (Qwen3, 2048), 192 by 256 278 and 138.
    """
    if gathers and mean <= _GATHERED_ROWS:
        return Prompt(2, 256, 0, gathers=True)
    if shape.inner >= _LONG_ROWS:
        return Prompt(3, 256, 0, by_rows=False, swapped=True)
    if mean <= _NARROW_ROWS:
        return Prompt(2, 128, 0)
    if mean > _ONE_TILE_ROWS:
        return Prompt(2, 256, 0)
    tall = Prompt(4, 192, 0)
    has_enough = shape.experts * -(-shape.outputs // tall.outputs) >= _ENOUGH_TASKS
    return tall if has_enough else Prompt(3, 256, 0, by_rows=False)


def fill_stream(tile: Stream, experts: int) -> Stream:
    """Return `tile` with as many stages as fit."""
    room = _SM_BYTES // tile.blocks - _RESERVED_BYTES - experts_bytes(experts)
    return replace(tile, stages=room // tile.stage_bytes)


def fill_prompt(tile: Prompt, experts: int, shared_bytes: int) -> Prompt:
    """Return `tile` with as many stages as fit."""
    room = shared_bytes - experts_bytes(experts) - tile.fixed_bytes
    return replace(tile, stages=room // tile.stage_bytes)


def experts_bytes(experts: int) -> int:
    """Return the shared memory that tasks are found in (tasks.cuh)."""
    padded = padded_experts(experts)
    groups = -(-padded // _WARP // 4) * 4  # the structure is a multiple of 16 bytes
    return padded * _EXPERT_BYTES + groups * 4


def padded_experts(experts: int) -> int:
    """Return the multiple of a warp's lanes that holds the experts: the macro EXPERTS."""
    return -(-experts // _WARP) * _WARP


def expert_macros(experts: int, shared: int) -> dict[str, int]:
    """Return the macros of tasks.cuh."""
    routed = experts - shared if shared else 0  # one variant for all layers without shared experts
    return {"EXPERTS": padded_experts(experts), "SHARED": shared, "ROUTED": routed}


def launch(shape: Shape, tile: Tile, sm_count: int) -> Launch | None:
    """Return the grid; None without rows. Blocks take one task after another."""
    if not shape.rows:
        return None
    dynamic = tile.stages * tile.stage_bytes + experts_bytes(shape.experts)
    if isinstance(tile, General):
        dynamic += tile.tokens * SOURCE_BYTES
    if isinstance(tile, Prompt):
        dynamic += tile.fixed_bytes
    blocks = min(shape.tasks(tile.tokens, tile.outputs), sm_count * tile.blocks)
    return Launch(
        grid=(blocks, 1, 1),
        block=(tile.threads, 1, 1),
        shared_bytes=dynamic,
        overlaps=True,
    )


SORT_LOADS: Final = 2  # of 16 bytes that a lane has of a row
SORT_LINES: Final = 8  # rows of a warp
SORT_WARPS: Final = 8
_VECTOR = 8  # elements of 16 bytes


def launch_sort(shape: Shape) -> Launch | None:
    """Return the grid of sort.cu; None without rows."""
    if not shape.rows:
        return None
    of_rows = -(-shape.rows // (SORT_LINES * SORT_WARPS))
    of_columns = -(-shape.inner // (_VECTOR * SORT_LOADS * _WARP))
    return Launch((of_rows, of_columns, 1), (_WARP * SORT_WARPS, 1, 1), overlaps=True)
