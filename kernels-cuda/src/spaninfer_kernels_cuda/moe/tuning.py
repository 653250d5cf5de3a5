"""Sizes of a mixture of experts -> tiles, grids and blocks. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spaninfer_kernel_launch import BEFORE_HOPPER, Launch, ShapeError

MAX_EXPERTS: Final = 512  # what the shared memory of a block can count, by warp
MAX_CHOICES: Final = 32  # a lane has one
MAX_GROUPS: Final = 32
GRAIN: Final = 8  # channels of a load, and rows of gate or up that lie together
PAIRS_OF_BLOCK: Final = 2048  # of each where several sort
MOST_PORTABLE: Final = 8  # blocks of a cluster on any GPU

_WARP = 32
_SORTERS = 1024  # threads that sort
_MAX_BLOCKS = 2**31 - 1
_CHOOSERS = 8  # warps of a block that chooses without a sort: kChoosers of moe/route.cu
_MOST_WARPS = 32  # of a block that sorts; where experts are many half
_MOST_WORDS = 32  # of 32 tokens, whose sets of experts shared memory holds; likewise
_FEW_EXPERTS = 8  # of a lane
_ALONE_TOKENS = 16  # that one block routes and sorts faster than a cluster
_ALONE_BEFORE_HOPPER = 64  # that one block routes in the time of two more launches
_DOZENS = 256  # tokens, which more than 8 blocks do not sort faster


@dataclass(frozen=True, slots=True)
class RouteShape:
    """Tokens, experts, and experts chosen per token, among the best `group_topk` of `groups`.

    Every token has `shared` experts besides, which are not among `experts`.
    """

    tokens: int
    experts: int
    top_k: int
    groups: int = 1
    group_topk: int = 1
    shared: int = 0

    @property
    def pairs(self) -> int:
        """All choices of all tokens."""
        return self.tokens * (self.top_k + self.shared)


def check_route(shape: RouteShape) -> None:
    """Raise ShapeError for unsupported sizes."""
    experts, groups = shape.experts, shape.groups
    if not 1 <= experts <= MAX_EXPERTS:
        raise ShapeError(f"{experts} experts; at least 1, at most {MAX_EXPERTS}")
    if not 1 <= groups <= MAX_GROUPS or experts % groups:
        raise ShapeError(
            f"{groups} groups of {experts} experts; at least 1, at most {MAX_GROUPS}, all equal"
        )
    if not 1 <= shape.group_topk <= groups:
        raise ShapeError(f"group_topk is {shape.group_topk}; at least 1, at most {groups} groups")
    available = experts // groups * shape.group_topk
    if not 1 <= shape.top_k <= min(available, MAX_CHOICES):
        raise ShapeError(
            f"top_k is {shape.top_k} of {available} experts; "
            f"at least 1, at most {min(available, MAX_CHOICES)}"
        )
    if not 0 <= shape.shared <= MAX_CHOICES - shape.top_k:
        raise ShapeError(
            f"{shape.shared} shared experts beside top_k = {shape.top_k}; "
            f"at most {MAX_CHOICES - shape.top_k}"
        )
    if not 0 <= shape.pairs <= _MAX_BLOCKS:
        most = _MAX_BLOCKS // (shape.top_k + shape.shared)
        raise ShapeError(f"{shape.tokens} tokens; at most {most}")


def experts_per_lane(experts: int, groups: int) -> int:
    """Return how many neighbouring experts a lane holds; groups take whole lanes.

    >>> experts_per_lane(128, 1), experts_per_lane(160, 8), experts_per_lane(60, 1)
    (4, 5, 2)
    """
    least = -(-experts // _WARP)
    if groups == 1:
        return least
    size = experts // groups
    return next(n for n in range(least, size + 1) if size % n == 0)


def cluster_blocks(shape: RouteShape, arch: str) -> int:
    """Return how many blocks, a cluster, route and sort the tokens; 0 where they are too many.

    µs for 8 of 128 experts at 16, 64, 256, 512 and 1024 tokens: by one block 3.4, 7.5 and 26, by 8
    3.9, 4.0, 5.7, 9.4 and 16.6, by 16 4.9, 5.0, 5.3, 6.5 and 10.8, by three launches 13.4 at 512
    and 14.0 at 1024 (H200, 2026-11-30). Not every GPU has clusters of 16.
    """
    if arch in BEFORE_HOPPER:
        return int(shape.tokens <= _ALONE_BEFORE_HOPPER)
    if shape.tokens <= _DOZENS:
        return 1 if shape.tokens <= _ALONE_TOKENS else MOST_PORTABLE
    words = _MOST_WORDS // _times_many(shape)
    return 2 * MOST_PORTABLE if arch == "sm_90a" and shape.tokens <= words * _WARP else 0


def _times_many(shape: RouteShape) -> int:
    return 1 if experts_per_lane(shape.experts, shape.groups) <= _FEW_EXPERTS else 2


@dataclass(frozen=True, slots=True)
class RouteGrid:
    """The launch of moe_route, and how many tokens a block has."""

    launch: Launch
    of_block: int


def launch_route(shape: RouteShape, cluster: int) -> RouteGrid:
    """Return the grid of moe_route: a cluster of blocks, which have a thread for each expert."""
    of_block = max(1, -(-shape.tokens // cluster))
    most = _MOST_WARPS // _times_many(shape)
    warps = max(min(of_block, most), -(-shape.experts // _WARP))
    grid = (cluster, 1, 1)
    return RouteGrid(Launch(grid, (_WARP * warps, 1, 1), cluster=grid, overlaps=True), of_block)


def launch_choice(tokens: int) -> Launch | None:
    """Return the grid of moe_choose; None without tokens."""
    if not tokens:
        return None
    warps = min(_CHOOSERS, tokens)
    return Launch((-(-tokens // _CHOOSERS), 1, 1), (_WARP * warps, 1, 1), overlaps=True)


def launch_sort(shape: RouteShape) -> Launch:
    """Return the grid of moe_count and moe_place, for pairs that no cluster sorts."""
    blocks = -(-shape.pairs // PAIRS_OF_BLOCK)
    return Launch((blocks, 1, 1), (_SORTERS, 1, 1), overlaps=True)


@dataclass(frozen=True, slots=True)
class MoeShape:
    """Tokens, experts per token (shared ones too), channels, and inner channels of an expert."""

    tokens: int
    top_k: int
    channels: int
    inner: int


def check_shape(shape: MoeShape) -> None:
    """Raise ShapeError for unsupported sizes."""
    if not 1 <= shape.top_k <= MAX_CHOICES:
        raise ShapeError(f"top_k is {shape.top_k}; at least 1, at most {MAX_CHOICES}")
    for name, size in (("channels", shape.channels), ("inner", shape.inner)):
        if size < 1 or size % GRAIN:
            raise ShapeError(f"{name} is {size}; a multiple of {GRAIN} is needed")


@dataclass(frozen=True, slots=True)
class Tile:
    """The work of a warp of a GEMV: columns of the result, and loads of each row at once.

    A block has `warps`; `blocks` of them shall find registers on a multiprocessor.
    """

    columns: int
    loads: int
    warps: int
    blocks: int


def up_tile(channels: int) -> Tile:
    """Return the tile of moe_up for rows of `channels`.

    Of 8 tiles the best or within 1 % of it for three models at 1 and 4 tokens (H200, 2026-11-23).
    """
    return Tile(columns=1, loads=min(8, _loads(channels)), warps=2, blocks=8)


def down_tile(inner: int, top_k: int) -> Tile:
    """Return the tile of moe_down for `top_k` rows of `inner` channels.

    Of long rows two share what is read of h: 157 µs for Mixtral's layer where one takes 161. Short
    ones take 68 to 69 µs for 4 tokens of Qwen3's with all of these tiles (H200, 2026-11-23).
    """
    if _loads(inner) > 24:
        return Tile(columns=2, loads=7, warps=4, blocks=4)
    return Tile(columns=1, loads=min(top_k * _loads(inner), 12), warps=8, blocks=2)


def _loads(channels: int) -> int:
    return -(-channels // (GRAIN * _WARP))


def launch_gemv(rows: int, columns: int, tile: Tile) -> Launch | None:
    """Return the grid of moe_up (a row per pair) or moe_down (per token); None without rows."""
    blocks = rows * -(-columns // (tile.columns * tile.warps))
    return Launch((blocks, 1, 1), (_WARP * tile.warps, 1, 1), overlaps=True) if rows else None


ROUTER_WARPS: Final = 8  # of a block
_ROUTER_EXPERTS, _ROUTER_TOKENS = 16, 8  # of a block
_ROUTER_LOADS = 8  # of a row that a lane has at once, at most
_MAX_ROUTER_TOKENS = 65_535 * _ROUTER_TOKENS  # the second axis of a grid


def check_router(tokens: int, experts: int, channels: int) -> None:
    """Raise ShapeError for unsupported sizes."""
    if experts < 1:
        raise ShapeError(f"{experts} experts; at least 1")
    if channels < 1 or channels % GRAIN:
        raise ShapeError(f"channels is {channels}; a multiple of {GRAIN} is needed")
    if not 0 <= tokens <= _MAX_ROUTER_TOKENS:
        raise ShapeError(f"{tokens} tokens; at most {_MAX_ROUTER_TOKENS}")


def router_loads(channels: int) -> int:
    """Return how many pieces of a row a lane of moe_router loads at once: the same in each round.

    Four lanes of each warp share the channels.
    """
    pieces = -(-channels // (4 * GRAIN * ROUTER_WARPS))
    rounds = -(-pieces // _ROUTER_LOADS)
    return -(-pieces // rounds)


def launch_router(tokens: int, experts: int) -> Launch | None:
    """Return the grid of moe_router; None without tokens."""
    if not tokens:
        return None
    grid = (-(-experts // _ROUTER_EXPERTS), -(-tokens // _ROUTER_TOKENS), 1)
    return Launch(grid, (_WARP * ROUTER_WARPS, 1, 1), overlaps=True)


SURE_GEMV_TOKENS, MOST_GEMV_TOKENS = 4, 8


def takes_gemv(shape: MoeShape, experts: int) -> bool:
    """Return True if so few tokens are computed without a sort.

    A GEMV reads an expert again for each of its tokens, mostly from the L2 cache; a grouped GEMM
    reads it once, behind a sort. µs of a layer so and so: Qwen3's 8 of 128 experts at 4 tokens
    73 and 77, at 8 124 and 127; 6 of 64 at 4 92 and 97, at 6 127 and 123; Mixtral's 2 of 8 at 4
    482 and 485, at 6 676 and 607 (H200, 2026-11-23).
    """
    few = shape.tokens <= MOST_GEMV_TOKENS and 2 * shape.tokens * shape.top_k <= experts
    return few or shape.tokens <= SURE_GEMV_TOKENS


_COMBINE_THREADS = (64, 128, 256, 512)
MAX_COMBINED: Final = 32_768  # channels: 8 loads of a thread, as in norms


def combine_threads(channels: int) -> int:
    """Return the threads of a block of moe_combine: one per load of a row, 64 to 512."""
    loads = channels // GRAIN
    return next((n for n in _COMBINE_THREADS if n >= loads), _COMBINE_THREADS[-1])
