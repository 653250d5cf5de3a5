"""An expert layer prepared for one number of tokens: its kernels, workspace and launches.

What the arrays hold stands in `call.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from spaninfer_kernel_launch import (
    NOT_GIVEN,
    Derived,
    FileCache,
    Gpu,
    NamedCalls,
    ShapeError,
    pointer_of,
    stream_handle,
)

from spaninfer_kernels_cuda import grouped_gemm
from spaninfer_kernels_cuda import norm as rms_norm
from spaninfer_kernels_cuda.grouped_gemm import Gate, GroupedGemm, coded_tuning
from spaninfer_kernels_cuda.grouped_gemm.kernels import Addresses as GemmAddresses
from spaninfer_kernels_cuda.moe import coded_gemv, combine, gemv, route
from spaninfer_kernels_cuda.moe.combine import Norm, SumArguments
from spaninfer_kernels_cuda.moe.gemv import DownArguments, Experts, UpArguments
from spaninfer_kernels_cuda.moe.route import RouteArguments, RouteOptions
from spaninfer_kernels_cuda.moe.tuning import MoeShape, takes_gemv
from spaninfer_kernels_cuda.quantized_gemm.format import QuantizedFormat

_INVARIANT_ROWS = 16  # of each expert, for whose tile all numbers of tokens are computed
_PARTS = ("ids", "shares", "order", "ends", "place", "counts", "h", "y")  # of a workspace
_PART_BYTES = 256  # parts of a workspace begin at multiples


@dataclass(frozen=True, slots=True)
class _Few:
    """GEMVs of few tokens, and the norm of their result."""

    gemv: gemv.PreparedGemv | coded_gemv.PreparedCodedGemv
    norm: rms_norm.PreparedNorm | None

    def start(
        self,
        handle: int,
        up: UpArguments,
        down: DownArguments,
        factors: tuple[int, int],
        norm: Norm | None,
    ) -> None:
        """Launch on the stream with this handle; weights that are codes have factors."""
        assert (norm is not None) == (self.norm is not None), "a norm where one was prepared"
        if isinstance(self.gemv, coded_gemv.PreparedCodedGemv):
            self.gemv.start(handle, up, down, factors)
        else:
            self.gemv.start(handle, up, down)
        if norm is not None and self.norm is not None:
            self.norm.start(
                handle,
                rms_norm.NormArguments(
                    out=pointer_of(norm.out),
                    scales=0,
                    rounded=0,
                    residual=0,
                    x=down.out,
                    weight=pointer_of(norm.weight),
                    bias=0,
                    channels=self.norm.channels,
                    eps=norm.eps,
                    weight_offset=norm.weight_offset,
                ),
            )


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Grouped GEMMs of sorted pairs, and the sum of their results with its norm."""

    gemms: GroupedGemm
    combine: combine.PreparedCombine

    def start(
        self,
        handle: int,
        up: GemmAddresses,
        down: GemmAddresses,
        added: SumArguments,
        norm: Norm | None,
    ) -> None:
        """Launch on the stream with this handle."""
        self.gemms.first.start(handle, up)
        self.gemms.second.start(handle, down)
        self.combine.start(handle, added, norm)


class Formats(NamedTuple):
    """The formats of an expert layer's weights; None of those that are no codes."""

    w13: QuantizedFormat | None
    w2: QuantizedFormat | None


class Addresses(NamedTuple):
    """Addresses of a layer's arrays; 0 for those that there are not."""

    x: int
    logits: int
    w13: int
    w2: int
    b13: int
    b2: int
    out: int
    workspace: int
    ticket: int
    residual: int
    correction: int
    slots: int
    f13: int = 0
    f2: int = 0


@dataclass(frozen=True, slots=True)
class PreparedMoe:
    """An expert layer of one number of tokens.

    `launch` needs `workspace_bytes` of memory with any content that begins at a multiple of 16
    bytes, and a ticket (`PreparedGroupedGemm.launch`).
    """

    shape: MoeShape
    workspace_bytes: int
    _parts: tuple[int, ...]  # offsets in the workspace
    _route: route.PreparedRoute
    _few: _Few | None
    _many: _Sorted | None

    def launch(
        self,
        x: object,
        logits: object,
        experts: Experts,
        *,
        out: object,
        workspace: object,
        ticket: object,
        residual: object = None,
        correction: object = None,
        slots: object = None,
        norm: Norm | None = None,
        stream: object = None,
    ) -> None:
        """Write the layer's result for x[T C], plus `residual`[T C], to `out`, and its norm.

        `out` may be `residual`; there is a `norm` where one was prepared. The rest is as for `moe`.
        """
        w13, w2, b13, b2, f13, f2 = map(pointer_of, experts)
        at = Addresses(
            x=pointer_of(x),
            logits=pointer_of(logits),
            w13=w13,
            w2=w2,
            b13=b13,
            b2=b2,
            out=pointer_of(out),
            workspace=pointer_of(workspace),
            ticket=pointer_of(ticket),
            residual=pointer_of(residual),
            correction=pointer_of(correction),
            slots=pointer_of(slots),
            f13=f13,
            f2=f2,
        )
        self.start(stream_handle(stream, x), at, norm)

    def start(self, handle: int, at: Addresses, norm: Norm | None = None) -> None:
        """Launch on the stream with this handle, the default stream included."""
        ids, shares, order, ends, place, counts, h, y = (
            at.workspace + part for part in self._parts
        )
        chosen = RouteArguments(ids, shares, order, ends, place, at.logits, at.correction, at.slots)
        self._route.start(handle, chosen, counts)
        if self._few is not None:
            to_h = UpArguments(h, at.x, ids, at.w13, at.b13)
            to_out = DownArguments(at.out, h, ids, shares, at.w2, at.b2, at.residual)
            self._few.start(handle, to_h, to_out, (at.f13, at.f2), norm)
        if self._many is not None:
            memory = y, at.ticket  # sorted tokens lie where the second GEMM then writes
            up = GemmAddresses(h, at.w13, at.x, at.b13, order, ends, *memory, at.f13)
            down = GemmAddresses(y, at.w2, h, at.b2, 0, ends, *memory, at.f2)
            added = SumArguments(at.out, y, ids, shares, place, at.residual)
            self._many.start(handle, up, down, added, norm)

    @property
    def by_name(self) -> NamedCalls:
        """The calls of a layer without a norm, their values named as in `Addresses`."""
        derived: dict[str, Derived] = {
            name: ("workspace", part) for name, part in zip(_PARTS, self._parts, strict=True)
        }
        parts = [self._route.by_name]
        if self._few is not None:
            parts.append(self._few.gemv.by_name)
        if self._many is not None:
            first, second = self._many.gemms.first, self._many.gemms.second
            up = {"out": "h", "weight": "w13", "bias": "b13", "workspace": "y", "factors": "f13"}
            down = {"out": "y", "weight": "w2", "x": "h", "bias": "b2", "factors": "f2"}
            down |= {"order": NOT_GIVEN, "workspace": "y"}
            parts += [first.by_name.within("up", up), second.by_name.within("down", down)]
            parts.append(self._many.combine.by_name)
        for part in parts:
            derived |= part.derived
        return NamedCalls(tuple(call for part in parts for call in part.calls), derived)

    @property
    def draws(self) -> bool:
        """True if a kernel draws from a ticket."""
        return self._many is not None and self._many.gemms.draw

    def clear(self, ticket: object, *, stream: object = None) -> None:
        """Initialise fresh memory as a ticket."""
        self.start_clear(stream_handle(stream, ticket), pointer_of(ticket))

    def start_clear(self, handle: int, ticket: int) -> None:
        """Initialise a ticket on the stream with this handle, the default stream included."""
        if self._many is not None:
            self._many.gemms.start_clear(handle, ticket)


def prepare(
    shape: MoeShape,
    options: RouteOptions,
    *,
    experts: int,
    act: Gate,
    dtype: object,
    gpu: Gpu,
    logits_dtype: object = "float32",
    with_norm: bool = False,
    batch_invariant: bool = False,
    formats: Formats | None = None,
    cache: FileCache | None = None,
) -> PreparedMoe:
    """Return the expert layer of `shape` on `gpu`, compiled or cached.

    Of `experts` the last ones are shared, as many as `options` say.
    `with_norm` prepares the RMS norm of the result too. With `batch_invariant` the bits of a
    token's result do not depend on the number of tokens: all numbers are computed as one is that
    gives each expert some rows. With `formats`, weights are codes.

    Raises ShapeError or DTypeError for unsupported sizes or types, CompileError where there is no
    compiler.
    """
    if shape.top_k != options.choices:
        raise ShapeError(f"the shape has {shape.top_k} choices, its rule has {options.choices}")
    has_gemv = formats is None or None not in formats
    is_few = takes_gemv(shape, experts) and not batch_invariant and has_gemv
    chosen = route.prepare(
        options, tokens=shape.tokens, experts=experts - options.shared, gpu=gpu,
        dtype=logits_dtype, sorts=not is_few, cache=cache,
    )  # fmt: skip
    few, many = None, None
    if is_few:
        gemms = _few_gemms(shape, formats, act=act, dtype=dtype, gpu=gpu, cache=cache)
        few = _Few(gemms, _norm(shape, dtype, gpu, cache) if with_norm else None)
    else:
        kind = _Kind(experts, options.shared, act, dtype, batch_invariant, formats)
        grouped = _grouped_gemms(shape, kind, gpu, cache)
        added = combine.prepare(shape, dtype=dtype, gpu=gpu, norm=with_norm, cache=cache)
        many = _Sorted(grouped, added)
    pairs = shape.tokens * shape.top_k
    sizes = (
        *(4 * pairs, 4 * pairs, 4 * pairs, 4 * experts, 4 * pairs, chosen.workspace_bytes),
        2 * pairs * shape.inner,
        2 * pairs * shape.channels if many else 0,
    )
    *parts, end = _offsets(sizes)
    return PreparedMoe(shape, end, tuple(parts), chosen, few, many)


def _few_gemms(
    shape: MoeShape, formats: Formats | None, **common: Any
) -> gemv.PreparedGemv | coded_gemv.PreparedCodedGemv:
    if formats is None:
        return gemv.prepare(shape, **common)
    of_up, of_down = formats
    assert of_up is not None, "both are codes"
    assert of_down is not None, "both are codes"
    return coded_gemv.prepare(shape, (of_up, of_down), **common)


def _norm(
    shape: MoeShape, dtype: object, gpu: Gpu, cache: FileCache | None
) -> rms_norm.PreparedNorm:
    rows, channels = shape.tokens, shape.channels
    options = rms_norm.NormOptions("rms")
    return rms_norm.prepare(
        options, rows=rows, channels=channels, dtype=dtype, gpu=gpu, cache=cache
    )


class _Kind(NamedTuple):
    """The common part of the GEMMs of a layer, for any number of tokens."""

    experts: int
    shared: int  # of them
    act: Gate
    dtype: object
    batch_invariant: bool
    formats: Formats | None


def _grouped_gemms(shape: MoeShape, kind: _Kind, gpu: Gpu, cache: FileCache | None) -> GroupedGemm:
    """Return both grouped GEMMs of a layer."""

    def gemm(
        outputs: int, inner: int, gate: Gate | None, format: QuantizedFormat | None
    ) -> grouped_gemm.PreparedGroupedGemm:
        pairs = shape.tokens * shape.top_k
        sizes = grouped_gemm.Shape(
            pairs, shape.top_k, kind.experts, outputs, inner, shared=kind.shared
        )
        some = replace(sizes, rows=_INVARIANT_ROWS * kind.experts)
        chooses = some if kind.batch_invariant else sizes
        common: Any = {
            "dtype": kind.dtype,
            "gpu": gpu,
            "gate": gate,
            "gathers": gate is not None,
            "cache": cache,
        }
        if format is not None:
            coded = coded_tuning.choose_quantized(chooses, format, gpu.arch, gpu.shared_bytes)
            return grouped_gemm.prepare_quantized(sizes, format, tile=coded, **common)
        gathers = gate is not None
        tile = grouped_gemm.tuning.choose(chooses, gpu.arch, gpu.shared_bytes, gathers=gathers)
        return grouped_gemm.prepare(sizes, tile=tile, **common)

    of_up, of_down = kind.formats or (None, None)
    return GroupedGemm(
        gemm(2 * shape.inner, shape.channels, kind.act, of_up),
        gemm(shape.channels, shape.inner, None, of_down),
    )


def _offsets(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return where parts of these sizes begin, and the end of the last one."""
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + -(-size // _PART_BYTES) * _PART_BYTES)
    return tuple(offsets)
