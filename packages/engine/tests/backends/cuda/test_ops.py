"""Spans on the GPU: writing to them and attending to them, against the definition in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import spaninfer_op_reference as definition
from backends import ON_GPU, Backend
from numpy.typing import NDArray
from span_attention import expand
from spaninfer_engine.backends.setup import DeviceSetup, KVMemory
from spaninfer_engine.ops.scoring import Scoring
from spaninfer_engine.ops.step import SpanCache, Step
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.spec.nodes import CacheGroup
from spaninfer_engine.step.batch import build_batch
from spaninfer_engine.step.device import Updates
from spaninfer_engine.step.plan import NewSequence, Slice, TableUpdate
from spaninfer_engine.step.sequences import Sequences
from spaninfer_kernel_launch import get_gpu

torch = pytest.importorskip("torch")

from spaninfer_engine.backends.cuda.device import CudaDevice, CudaProgram  # noqa: E402
from spaninfer_engine.backends.cuda.graphs.memory import Sizes  # noqa: E402
from spaninfer_engine.backends.cuda.ops import CudaOps  # noqa: E402

pytestmark = pytest.mark.gpu

Array = NDArray[Any]

LAYERS, LAYER = 3, 1
LENGTHS = {1: 300, 2: 1, 3: 65, 4: 130}  # tokens of each request

STEPS = {
    "decodes": [(1, 299, 300), (2, 0, 1), (3, 64, 65)],
    "a prompt": [(1, 0, 300)],
    "a chunk": [(1, 100, 300)],
    "decodes, then prompts": [(1, 299, 300), (3, 64, 65), (4, 30, 130), (2, 0, 1)],
}
SIZES = {  # query heads, kv heads, key width, value width
    "4 to 4 of 64": (4, 4, 64, 64),
    "14 to 2 of 64": (14, 2, 64, 64),
    "4 to 2 of 96": (4, 2, 96, 96),
    "8 to 2 of 128": (8, 2, 128, 128),
    "4 to 1 of 256": (4, 1, 256, 256),
    "4 to 4 of 16": (4, 4, 16, 16),
    "4 to 2 of 24": (4, 2, 24, 24),
    "latents": (4, 1, 576, 512),
}
SCORES: dict[str, dict[str, Any]] = {
    "plain": {},
    "capped": {"softcap": 2.0},
    "through a window": {"window": 50},
    "through a window and capped": {"window": 17, "softcap": 3.0},
    "with ALiBi": {"alibi": "plain"},
    "with scaled ALiBi": {"alibi": "scaled"},
    "with rounded ALiBi": {"alibi": "rounded"},
}


def _random(shape: tuple[int, ...], seed: int) -> Array:
    """Random numbers that both 16-bit types hold exactly."""
    rng = np.random.default_rng(seed)
    numbers = definition.to_bfloat16(rng.uniform(-2, 2, shape)).astype(np.float64)
    return np.where(np.abs(numbers) < 2**-6, 0.0, numbers)


def _group(sizes: tuple[int, int, int, int]) -> CacheGroup:
    _, kv_heads, key_size, value_size = sizes
    return CacheGroup(
        0,
        tuple(range(LAYERS)),
        kv_heads,
        key_size,
        value_size,
        values_in_keys=key_size > value_size,
    )


def _written(group: CacheGroup, seq_id: int) -> tuple[Array, Array]:
    rows = LENGTHS[seq_id]
    keys = _random((rows, group.kv_heads, group.key_size), seq_id)
    if group.values_in_keys:
        return keys, keys[..., : group.value_size]
    return keys, _random((rows, group.kv_heads, group.value_size), seq_id + 10)


class Spans:
    """A cache group on the GPU whose spans are full of NaN but for what requests wrote."""

    def __init__(self, backend: Backend, group: CacheGroup, span_len: int) -> None:
        self.backend, self.group, self.ops = backend, group, backend.make()
        num_spans = sum(-(-length // span_len) for length in LENGTHS.values()) + 5
        self.cache: SpanCache[Any] = self.ops.cache(group, num_spans, span_len)
        for part in self.cache:
            part.view(torch.uint8)[:] = 0xFF  # NaN, whatever it is read as
        free = np.random.default_rng(5).permutation(num_spans).tolist()
        self.sequences = Sequences(1, max_len=320, span_len=span_len, num_rows=len(LENGTHS))
        for seq_id, length in LENGTHS.items():
            self.sequences.enter(NewSequence(seq_id, (0,) * length, SamplingParams(), 0))
            spans = tuple(free.pop() for _ in range(-(-length // span_len)))
            self.sequences.update_table(TableUpdate(seq_id, 0, 0, spans))
        self._forward: Callable[[Step[Any]], Any] = lambda _: None
        self._device = CudaDevice(
            self.ops, CudaProgram(forward=self._compute),
            Sizes(requests=len(LENGTHS), rows=512, max_len=320, span_len=span_len, num_groups=1,
                  prompt_logits=1),
            KVMemory((self.cache,)), DeviceSetup(self.sequences, (num_spans,)), shapes=None,
        )  # fmt: skip

    def _compute(self, step: Step[Any]) -> Any:
        self._made = self._forward(step)
        return torch.empty((0, 8), device="cuda")  # no logits

    def run(self, parts: list[tuple[int, int, int]], forward: Callable[[Step[Any]], Any]) -> Any:
        """Return what `forward` makes in a step of these positions of sequences."""
        slices = [Slice(seq_id, start, stop, stop, False, 0) for seq_id, start, stop in parts]
        self._forward = forward
        torch.cuda.synchronize()
        batch = build_batch(slices, self.sequences)
        self._device.launch(batch, Updates()).wait()
        return self._made

    def write(self, step: Step[Any], parts: list[tuple[int, int, int]]) -> None:
        """Append the keys and values of these positions of sequences."""
        both = [_written(self.group, seq_id) for seq_id, *_ in parts]
        key, value = (
            self.backend.put(
                self.ops,
                np.concatenate([x[a:b] for (_, a, b), x in zip(parts, which, strict=True)]),
            )
            for which in zip(*both, strict=True)
        )
        values = () if self.group.values_in_keys else (value,)
        self.ops.append(step, key, *values, group=0, layer=LAYER)


def _expected(
    group: CacheGroup,
    query: Array,
    parts: Any,
    alibi: Any,
    stored: Callable[[Array], Array],
    **scores: Any,
) -> Array:
    slopes = definition.alibi_slopes(query.shape[1])
    read, first = [], 0
    for seq_id, start, stop in parts:
        keys, values = (stored(each[:stop]) for each in _written(group, seq_id))
        places = np.arange(stop)
        bias = {
            None: None,
            "plain": definition.alibi_bias(slopes, places),
            "scaled": definition.alibi_bias(slopes, places) * scores["scale"],
            "rounded": definition.falcon_alibi_bias(slopes, places, scores["scale"]),
        }[alibi]
        last = first + stop - start
        queries, positions = query[first:last], np.arange(start, stop)
        read.append(
            definition.attend(queries, keys, values, positions, places, bias=bias, **scores)
        )
        first = last
    return np.concatenate(read)


def _attend(spans: Spans, step: Step[Any], query: Any, scoring: Scoring) -> Any:
    return spans.ops.attend(step, query, group=0, layer=LAYER, scoring=scoring)


def _attend_by_graph(spans: Spans, step: Step[Any], query: Any, scoring: Scoring) -> Any:
    """Capture the attention of a step without tokens, and replay it when it has these."""
    stream, slices = torch.cuda.current_stream(), step.attention.slices
    lengths = slices.lengths.clone()
    slices.lengths.zero_()
    unknown = replace(slices, prefills=())
    for capture in (False, True):  # kernels are loaded before
        anew = replace(step, attention=spans.ops.plan(unknown, (spans.cache,)))
        graph = torch.cuda.CUDAGraph()
        stream.synchronize()
        if capture:
            graph.capture_begin()
        out = _attend(spans, anew, query, scoring)
        if capture:
            graph.capture_end()
    slices.lengths.copy_(lengths)
    graph.replay()
    stream.synchronize()
    return out.clone()


def _check(
    backend: Backend,
    sizes: tuple[int, int, int, int],
    parts: list[tuple[int, int, int]],
    *,
    span_len: int = 16,
    softcap: float | None = None,
    window: int | None = None,
    alibi: Any = None,
    stored: Callable[[Array], Array] = lambda x: x,
    attend: Callable[[Spans, Step[Any], Any, Scoring], Any] = _attend,
) -> None:
    group = _group(sizes)
    spans = Spans(backend, group, span_len)
    earlier = [(seq_id, 0, start) for seq_id, start, _ in parts if start]
    if earlier:
        spans.run(earlier, lambda step: spans.write(step, earlier))
    query = _random((sum(stop - start for _, start, stop in parts), sizes[0], group.key_size), 99)
    scores = {"scale": group.key_size**-0.5, "softcap": softcap, "window": window}

    def forward(step: Step[Any]) -> Any:
        spans.write(step, parts)
        asked = backend.put(spans.ops, query)
        return attend(spans, step, asked, Scoring(**scores, alibi=alibi))

    actual = spans.run(parts, forward)

    backend.check(spans.ops, actual, _expected(group, query, parts, alibi, stored, **scores))


@pytest.mark.parametrize("backend", ON_GPU, ids=str)
@pytest.mark.parametrize("parts", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_slices_of_every_kind_read_what_was_written(
    sizes: Any, parts: Any, backend: Backend
) -> None:
    _check(backend, sizes, parts)


@pytest.mark.parametrize("backend", ON_GPU, ids=str)
@pytest.mark.parametrize("parts", [STEPS["decodes, then prompts"]], ids=["mixed"])
@pytest.mark.parametrize("scores", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize("sizes", [SIZES["8 to 2 of 128"], SIZES["4 to 2 of 24"]], ids=str)
def test_scores_are_capped_limited_and_biased(
    sizes: Any, scores: dict[str, Any], parts: Any, backend: Backend
) -> None:
    _check(backend, sizes, parts, **scores)


@pytest.mark.parametrize("parts", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("sizes", [SIZES["14 to 2 of 64"], SIZES["8 to 2 of 128"]], ids=str)
@pytest.mark.parametrize("attend", [_attend, _attend_by_graph])
@pytest.mark.parametrize("kv_dtype", ["fp8", "int8", "uint4"])
def test_codes_are_read_as_the_numbers_that_they_stand_for(
    kv_dtype: Any, attend: Any, sizes: Any, parts: Any
) -> None:
    _check(Coded("cuda", "bfloat16", lambda: CudaOps("bfloat16", kv_dtype=kv_dtype)),
           sizes, parts, stored=_STORED[kv_dtype], attend=attend)  # fmt: skip


def test_a_captured_step_expands_codes_where_a_kernel_reads_floats(monkeypatch: Any) -> None:
    backend = Coded("cuda", "bfloat16", lambda: CudaOps("bfloat16", kv_dtype="fp8"))
    launched: list[int] = []
    launch = expand.PreparedExpansion.launch
    monkeypatch.setattr(
        expand.PreparedExpansion,
        "launch",
        lambda self, *arrays, **more: launched.append(1) or launch(self, *arrays, **more),
    )
    has_kernel = get_gpu().arch == "sm_90a"

    for attend in (_attend, _attend_by_graph):
        _check(backend, SIZES["8 to 2 of 128"], STEPS["a chunk"], stored=_fp8, attend=attend)

    assert len(launched) == (3 if has_kernel else 0)


class Coded(Backend):
    """A backend whose cached numbers are rounded twice: to codes, which is part of the definition,
    and then to the 16 bits of products.
    """

    def check(self, ops: Any, actual: Any, expected: Array) -> None:
        error = definition.relative_error(ops.to_host(actual), expected)
        assert error < 2 * definition.tolerance(self.dtype)


def _through(codes: definition.CodeRange) -> Callable[[Array], Array]:
    """In float32, as the kernel computes: numbers of 16 bits often lie between two codes."""
    return lambda x: definition.quantize_cache(x.astype(np.float32), codes).dequantize()


def _fp8(x: Array) -> Array:
    codes, scale = definition.quantize_fp8(x.astype(np.float32))
    return codes * scale


_STORED = {
    "fp8": _fp8,
    "int8": _through(definition.CodeRange.INT8),
    "uint4": _through(definition.CodeRange.UINT4),
}


@pytest.mark.parametrize("backend", ON_GPU[:1], ids=str)
@pytest.mark.parametrize("span_len", [32, 128])
def test_spans_may_be_longer(span_len: int, backend: Backend) -> None:
    _check(backend, SIZES["8 to 2 of 128"], STEPS["decodes, then prompts"], span_len=span_len)


@pytest.mark.parametrize("backend", ON_GPU, ids=str)
@pytest.mark.parametrize("sizes", [SIZES["8 to 2 of 128"], SIZES["latents"]], ids=str)
def test_a_span_of_all_layers_is_one_piece_of_memory(sizes: Any, backend: Backend) -> None:
    group, ops = _group(sizes), backend.make()

    keys, values, rows = ops.cache(group, 7, 16)

    numbers = keys.numel() + (0 if group.values_in_keys else values.numel())
    assert keys.shape == (LAYERS, 7, 16, group.kv_heads, group.key_size)
    assert values.shape == (LAYERS, 7, 16, group.kv_heads, group.value_size)
    assert keys.stride()[:2] == (numbers // (7 * LAYERS), numbers // 7)
    assert keys.stride()[3] == 16 * group.key_size  # the tokens of a head lie together
    assert rows.shape == (7, numbers // 7 * keys.itemsize)
    assert rows.data_ptr() == keys.data_ptr()
