"""Attention as calls: keys and values appended to spans, and what queries read from them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spaninfer_kernels_cpu.attention.append_kernel import GRID_BYTES, store
from spaninfer_kernels_cpu.attention.attend_block import Softmax
from spaninfer_kernels_cpu.attention.attend_kernel import (
    Operands,
    Problem,
    SelectedKeys,
    attend_task,
    head_tasks,
    merge_task,
    scratch_bytes,
)
from spaninfer_kernels_cpu.attention.attention_kernels import AttentionKernels
from spaninfer_kernels_cpu.attention.attention_plan import MAX_QUERIES, QUERIES
from spaninfer_kernels_cpu.attention.kv_array import KVArray, check_cache
from spaninfer_kernels_cpu.attention.pair_tile import PIECE
from spaninfer_kernels_cpu.attention.scores import Scores, ahead_of, check_heads
from spaninfer_kernels_cpu.attention.spans import (
    CacheArrays,
    StridedArray,
    place_of,
    strides_of,
)
from spaninfer_kernels_cpu.codegen.arguments import Arguments, Float32, Indirect
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import (
    BFLOAT16,
    ELEMENTS,
    FLOAT16,
    FLOAT32,
    Element,
    larger,
    read_index,
    smaller,
)
from spaninfer_kernels_cpu.codegen.isa_level import active_level, require_float16
from spaninfer_kernels_cpu.codegen.kernel import Kernel, variants
from spaninfer_kernels_cpu.gemm.micro_kernel_choice import micro_kernels
from spaninfer_kernels_cpu.quantisation.layout import LANES, Format, Kind
from spaninfer_kernels_cpu.runtime.call import (
    NUMBERS_PER_TASK,
    Call,
    Matrix,
    address_or_zero,
    row_at,
    tokens_per_task,
)
from spaninfer_kernels_cpu.runtime.scratch_pool import acquire, give_back, scratch_pool


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The division of a step's attention into tasks (`attention_plan.plan_attention`).

    Which of the step's counts is that of its items; items[N 9], and memory for parts.
    """

    count: int
    items: Indirect
    parts: Indirect


@dataclass(frozen=True, slots=True)
class Selected:
    """The address of what `select_calls` writes: positions[T top_k] (int32)."""

    positions: int
    top_k: int


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The keys and values of a layer, and how tokens find them.

    tables, request, position: the arrays of `AttentionBatch`; table_len: their M. `selected`: the
    positions that each token reads; None: all that it sees.
    """

    keys: KVArray
    values: KVArray
    tables: Indirect
    table_len: Indirect
    request: Indirect
    position: Indirect
    selected: Selected | None = None

    def __post_init__(self) -> None:
        """Raise KernelError unless keys, values and their scales fit together."""
        check_cache(self.keys, self.values)


@dataclass(frozen=True, slots=True)
class _AppendArguments(Arguments):
    x: Matrix
    numbers: StridedArray
    scales: StridedArray
    span_len: int
    heads: int
    size: int
    split: int
    tables: Indirect
    table_len: Indirect
    request: Indirect
    position: Indirect


def append_call(x: Matrix, into: KVArray, spans: LayerCache) -> Call:
    """Write rows of heads (float32) into `into`, which is the keys or the values of `spans`."""
    _, span_len, heads, _ = into.numbers.shape
    arguments = _AppendArguments(
        x=x,
        numbers=into.place,
        scales=into.scales_place,
        span_len=span_len,
        heads=heads,
        size=into.size,
        split=into.first_part,
        tables=spans.tables,
        table_len=spans.table_len,
        request=spans.request,
        position=spans.position,
    )
    return Call(_append_kernel(into.kind), arguments, 1, tokens_per_task(heads * into.size))


@variants
def _append_kernel(kind: Element) -> Kernel:
    demand_kind(kind)

    def append(arguments: _AppendArguments, tokens: int, task: int) -> None:
        span_len, heads, size = arguments.span_len, arguments.heads, arguments.size
        split = arguments.split
        tables, table_len = arguments.tables, arguments.table_len
        request, position = arguments.request, arguments.position
        some = larger(1, NUMBERS_PER_TASK // (heads * size))
        for row in range(task * some, smaller(tokens, (task + 1) * some)):
            at = read_index(position, row)
            span = read_index(tables, read_index(request, row) * table_len + at // span_len)
            numbers, scales = strides_of(arguments.numbers), strides_of(arguments.scales)
            for head in range(heads):
                source = row_at(arguments.x, row) + head * size * 4
                into = place_of(numbers, span, at % span_len, head)
                grid = place_of(scales, span, at % span_len, head)
                for part in range(1 if split == size else 2):
                    first, count = part * split, split if part == 0 else size - split
                    numbers_at, scales_at = into + first * kind.bits // 8, grid + part * GRID_BYTES
                    store(kind, source + 4 * first, count, numbers_at, scales_at)

    return append


@dataclass(frozen=True, slots=True)
class _SoftmaxArguments(Arguments):
    """`attend_block.Softmax`, in the arguments of a call."""

    scale: Float32
    softcap: Float32
    window: int
    slopes: int
    sinks: int
    rounded: bool
    ahead: int
    biases: int
    reach: int


@dataclass(frozen=True, slots=True)
class _AttendArguments(Arguments):
    """`attend_kernel.Problem`, in the arguments of a call; `scratch` is a pool of memory."""

    query: Matrix
    out: int
    heads: int
    items: Indirect
    parts: Indirect
    tables: Indirect
    table_len: Indirect
    keys: StridedArray
    key_scales: StridedArray
    values: StridedArray
    value_scales: StridedArray
    span_len: int
    kv_heads: int
    key_size: int
    key_split: int
    value_size: int
    softmax: _SoftmaxArguments
    scratch: int
    selected: int
    top_k: int
    request: Indirect


def attend_calls(
    query: Matrix,
    *,
    heads: int,
    spans: LayerCache,
    plan: AttentionPlan,
    scores: Scores,
    out: Matrix,
) -> list[Call]:
    """Return the calls that write the attention of query[T H D] to out[T H E], with dense rows.

    Both are float32. The second call joins what tasks read in chunks of a long context. Raises
    KernelError for heads that do not share keys evenly.
    """
    keys, values = spans.keys, spans.values
    check_heads(heads, keys.numbers.shape[2], scores)
    _, span_len, kv_heads, _ = keys.numbers.shape
    kernel = _attend_kernel(keys.kind, scores.narrow and has_pairs(keys, values))
    arguments = _AttendArguments(
        query=query,
        out=out.address,
        heads=heads,
        items=plan.items,
        parts=plan.parts,
        tables=spans.tables,
        table_len=spans.table_len,
        keys=keys.place,
        key_scales=keys.scales_place,
        values=values.place,
        value_scales=values.scales_place,
        span_len=span_len,
        kv_heads=kv_heads,
        key_size=keys.size,
        key_split=keys.first_part,
        value_size=values.size,
        softmax=_SoftmaxArguments(
            scale=scores.scale,
            softcap=scores.softcap or 0.0,
            window=0 if scores.chunked else scores.window or 0,  # else the plan has cut them
            slopes=address_or_zero(scores.slopes),
            sinks=address_or_zero(scores.sinks),
            rounded=scores.rounded,
            ahead=ahead_of(scores),
            biases=address_or_zero(scores.biases),
            reach=0 if scores.biases is None else scores.biases.shape[1] // 2,
        ),
        scratch=scratch_pool(scratch_bytes(keys.size, values.size)),
        selected=0 if spans.selected is None else spans.selected.positions,
        top_k=0 if spans.selected is None else spans.selected.top_k,
        request=spans.request,
    )
    return [
        Call(kernel, arguments, head_tasks(heads, kv_heads), 1, plan.count),
        Call(_merge, arguments, 1, 1, plan.count),
    ]


def has_pairs(keys: KVArray, values: KVArray) -> bool:
    """Return True if products of such keys and values may be of bfloat16 (`pair_tile`)."""
    whole = keys.size % PIECE == 0 and values.size % LANES == 0
    return whole and _multiplies_pairs(keys.kind)


def item_queries(spans: LayerCache, scores: Scores) -> int:
    """Return `queries` of the plans of such attention (`PlanKind`).

    Tiles leave out what none of 32 queries sees, so items are as large as where all see all: keys
    and values are packed as often as there are items. A prompt of 256 tokens, 16 heads on 8 of 128
    channels: 1.08 ms with 64 queries, 0.92 with 128, 0.96 with 256; one of 1,900 58, 40 and 34
    (one core of a Xeon with AMX, Granite Rapids).
    """
    by_tiles = "bfloat16" in active_level().tiles
    is_narrow = scores.narrow and has_pairs(spans.keys, spans.values)
    return MAX_QUERIES if by_tiles and is_narrow else QUERIES


def _multiplies_pairs(kind: Element) -> bool:
    level = active_level()
    has_product = level.bf16_dot == "vdpbf16ps" or "bfloat16" in level.tiles
    return kind in (FLOAT32, BFLOAT16) and has_product


@variants
def _attend_kernel(kind: Element, by_pairs: bool) -> Kernel:
    demand_kind(kind)
    product: Kind = "bfloat16" if by_pairs else "float32"
    one, many = micro_kernels(Format(product), rounded=by_pairs, level=active_level())
    kernels = AttentionKernels(kind, replace(one, ahead=0), many)

    def attend(arguments: _AttendArguments, tokens: int, task: int) -> None:  # noqa: ARG001
        operands, spans, given = _operands(arguments), _cache_arrays(arguments), arguments.softmax
        units = head_tasks(operands.heads, spans.kv_heads)
        memory = acquire(arguments.scratch, task)
        softmax = Softmax(
            given.scale,
            given.softcap,
            given.window,
            given.slopes,
            given.sinks,
            given.rounded,
            given.ahead,
            given.biases,
            given.reach,
        )
        number, unit = task // units, task % units
        attend_task(kernels, number, unit, Problem(operands, spans, softmax), memory)
        give_back(memory)

    return attend


def attention_kernels(kind: str, *, narrow: bool = False) -> tuple[Kernel, ...]:
    """Return the kernels that attention over keys and values of a kind calls, by its name; those
    of `narrow` scores where heads have whole pieces.
    """
    element = ELEMENTS[kind]
    by_pairs = narrow and _multiplies_pairs(element)
    return _attend_kernel(element, by_pairs), _append_kernel(element), _merge


def demand_kind(kind: Element) -> None:
    """Raise IsaLevelError for keys and values that this CPU has no instructions for."""
    if kind == FLOAT16:
        require_float16()


def _merge(arguments: _AttendArguments, tokens: int, task: int) -> None:  # noqa: ARG001
    merge_task(task, _operands(arguments), arguments.value_size, arguments.softmax.sinks)


@device_function
def _operands(arguments: _AttendArguments) -> Operands:
    return Operands(
        arguments.query.address,
        arguments.query.stride,
        arguments.out,
        arguments.heads,
        arguments.items,
        arguments.tables,
        arguments.table_len * 4,
        arguments.parts,
        SelectedKeys(arguments.selected, arguments.top_k, arguments.request),
    )


@device_function
def _cache_arrays(arguments: _AttendArguments) -> CacheArrays:
    return CacheArrays(
        strides_of(arguments.keys),
        strides_of(arguments.values),
        strides_of(arguments.key_scales),
        strides_of(arguments.value_scales),
        arguments.span_len,
        arguments.kv_heads,
        arguments.key_size,
        arguments.key_split,
        arguments.value_size,
    )
