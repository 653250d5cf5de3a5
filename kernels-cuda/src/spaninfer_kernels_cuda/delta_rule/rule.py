"""The gated delta rule over states in spans: decodes by its formulas, longer slices in chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from spaninfer_kernel_launch import (
    WITH_BFLOAT16,
    ArraySpec,
    Call,
    FileCache,
    Gpu,
    Int32,
    Int64,
    NamedCalls,
    Operator,
    Pointer,
    ShapeError,
    Signature,
    Step,
    Variant,
    View,
    check_dense,
    check_rows,
    compile_variant,
    element_of,
    gpu_of,
    load,
    match,
    new_results,
    user_cache,
    view_at,
)

from spaninfer_kernels_cuda.delta_rule.slices import (
    SLICE_AXES,
    Slices,
    check_slices,
    check_states,
    source,
)
from spaninfer_kernels_cuda.delta_rule.tuning import (
    CHUNK,
    WARPS,
    decode_tile,
    launch_decodes,
    launch_prompts,
    shared_bytes,
    vector,
)


class RuleArguments(NamedTuple):
    """Addresses, the arguments of learn_tokens and learn_chunks."""

    out: Pointer
    x: Pointer
    a: Pointer
    b: Pointer
    a_log: Pointer
    dt_bias: Pointer
    states: Pointer
    table_rows: Pointer
    seq_lens: Pointer
    query_start_loc: Pointer
    tables: Pointer


class DecodeSizes(NamedTuple):
    """Elements from row to row, table row to table row, span to span; and numbers of heads."""

    x_stride: Int64
    a_stride: Int64
    b_stride: Int64
    table_stride: Int64
    span_stride: Int64
    span_len: Int32
    key_heads: Int32
    value_heads: Int32


class PromptSizes(NamedTuple):
    """The same, and the number of slices in front."""

    x_stride: Int64
    a_stride: Int64
    b_stride: Int64
    table_stride: Int64
    span_stride: Int64
    span_len: Int32
    key_heads: Int32
    value_heads: Int32
    num_decodes: Int32


LEARN_TOKENS = Signature("learn_tokens", RuleArguments, DecodeSizes)
LEARN_CHUNKS = Signature("learn_chunks", RuleArguments, PromptSizes)
_DECODE = source("decode.cu", kernels=(LEARN_TOKENS,))
_PROMPT = source("prompt.cu", "mma.cuh", kernels=(LEARN_CHUNKS,))


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """A request for variants: sizes of a key and of a value, and their type (16-bit floats)."""

    key_size: int
    value_size: int
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class PreparedRule:
    """The delta rule for decodes, for longer slices, or for both, of one size."""

    calls: tuple[Call[RuleArguments], ...]

    def start(self, handle: int, arguments: RuleArguments) -> None:
        """Launch on the stream with this handle, the default stream included."""
        for call in self.calls:
            call(handle, arguments)


def decode_variant(options: RuleOptions) -> Variant:
    """Return the variant for slices of one token."""
    tile = decode_tile(_checked_sizes(options)[1])
    macros: dict[str, str | int | bool] = {
        "T": element_of(options.dtype).name,
        "KEY": options.key_size,
        "VALUE": options.value_size,
        "COLUMNS": tile.columns,
        "VECTOR": tile.vector,
        "THREADS": tile.threads,
    }
    return Variant.of("learn_tokens", _DECODE, macros, WITH_BFLOAT16)


def prompt_variant(options: RuleOptions) -> Variant:
    """Return the variant for slices of any length."""
    key_size, value_size = _checked_sizes(options)
    macros: dict[str, str | int | bool] = {
        "T": element_of(options.dtype).name,
        "KEY": key_size,
        "VALUE": value_size,
        "VECTOR": vector(key_size, value_size),
        "CHUNK": CHUNK,
        "WARPS": WARPS,
        "SHARED_BYTES": shared_bytes(key_size),
    }
    return Variant.of("learn_chunks", _PROMPT, macros, WITH_BFLOAT16)


MAX_KEY_SIZE = 128
"""A warp keeps 16 columns of a state in registers."""


def _checked_sizes(options: RuleOptions) -> tuple[int, int]:
    if element_of(options.dtype).itemsize != 2:
        raise ShapeError(f"x holds {options.dtype}; the delta rule takes 16-bit floats")
    if options.key_size > MAX_KEY_SIZE or options.key_size % 2 or options.value_size % 2:
        raise ShapeError(
            f"heads of {options.key_size} and {options.value_size} channels; the kernels take even "
            f"numbers, and keys of at most {MAX_KEY_SIZE}"
        )
    return options.key_size, options.value_size


def prepare(
    options: RuleOptions,
    sizes: PromptSizes,
    *,
    num_slices: int,
    gpu: Gpu,
    cache: FileCache | None = None,
) -> PreparedRule:
    """Return the delta rule of `num_slices` slices on `gpu`, compiled or cached."""
    cache, calls = cache or user_cache(), list[Call[RuleArguments]]()
    heads, decodes = sizes.value_heads, sizes.num_decodes
    if decodes:
        compiled = compile_variant(decode_variant(options), gpu.arch, cache)
        grid = launch_decodes(heads, options.value_size, decodes, decode_tile(options.value_size))
        kernel = load(compiled, gpu, LEARN_TOKENS)
        calls.append(Call(kernel, grid, DecodeSizes(*sizes[:-1])))
    if num_slices > decodes:
        compiled = compile_variant(prompt_variant(options), gpu.arch, cache)
        prompts = num_slices - decodes
        grid = launch_prompts(heads, options.key_size, options.value_size, prompts)
        calls.append(Call(load(compiled, gpu, LEARN_CHUNKS), grid, sizes))
    return PreparedRule(tuple(calls))


def delta_rule(
    x: object,
    gates: tuple[object, object],
    decays: tuple[object, object],
    states: object,
    slices: Slices,
    *,
    out: object = None,
    stream: object = None,
) -> object:
    """Return what states[S H D E] say of the queries of x[T X], after learning its keys and values.

    A row of x is K queries of D channels, K keys, then H values of E. `gates` are a[T H] and b[T H]
    of projections, `decays` a_log[H] and dt_bias[H] in float32: a state decays by
    exp(-exp(a_log) softplus(a + dt_bias)) and learns by sigmoid(b). Queries and keys are made unit.
    States are float32; their spans may lie apart. Without `out`, the result [T H E] is a new array.
    """
    arrays = x, *gates, *decays, states, *slices.arrays, out
    new = _delta_rule.start((slices.span_len, slices.num_decodes), arrays, stream=stream)
    return new[0] if out is None else out


def _prepare_call(options: tuple[int, int], given: dict[str, ArraySpec]) -> Step:
    """Return the rule for arrays with these specs; options are sizes of the slices."""
    span_len, num_decodes = options
    views = {name: view_at(spec) for name, spec in given.items() if name != "out"}
    x = views["x"]
    rows, _, heads, _, key_size, value_size = match(
        x=(x, "T X"),
        a=(views["a"], "T H"),
        states=(views["states"], "S H D E"),
        b=(views["b"], "T H"),
        a_log=(views["a_log"], "H"),
        dt_bias=(views["dt_bias"], "H"),
    ).values()
    key_heads = _key_heads(x, heads, key_size, value_size)
    check_dense(np.float32, a_log=views["a_log"], dt_bias=views["dt_bias"])
    width = vector(key_size, value_size) * x.dtype.itemsize
    check_rows(x.dtype, width, x=x)
    check_rows(x.dtype, x.dtype.itemsize, a=views["a"], b=views["b"])
    num_slices = check_slices(views, num_decodes)
    sizes = PromptSizes(
        x_stride=x.strides[0],
        a_stride=views["a"].strides[0],
        b_stride=views["b"].strides[0],
        table_stride=views["tables"].strides[0],
        span_stride=check_states("states", views["states"], (heads, key_size, value_size)),
        span_len=span_len,
        key_heads=key_heads,
        value_heads=heads,
        num_decodes=num_decodes,
    )
    gpu = gpu_of(**views)
    rule = prepare(
        RuleOptions(key_size, value_size, x.dtype), sizes, num_slices=num_slices, gpu=gpu
    )
    new = new_results(given, gpu, ("out", (rows, heads, value_size), x.dtype, width))
    return Step(gpu, NamedCalls.of(*rule.calls), new)


_delta_rule = Operator(f"x a b a_log dt_bias states {' '.join(SLICE_AXES)} out", _prepare_call)


def _key_heads(x: View, heads: int, key_size: int, value_size: int) -> int:
    keys, rest = divmod(x.shape[1] - heads * value_size, 2 * key_size)
    if rest or keys < 1 or heads % keys:
        raise ShapeError(
            f"x: rows of {x.shape[1]} are not queries and keys of {key_size} channels, then values "
            f"of {heads} heads of {value_size} that share them"
        )
    return keys
