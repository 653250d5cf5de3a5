"""Attention over keys and values of every kind, with sinks, and over many chunks, in float64.

`test_attention` has the sizes; here every kind of number meets those that its loads find hard.
"""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import spaninfer_op_reference as op_reference
from spaninfer_kernels_cpu import (
    AttentionBatch,
    DTypeError,
    KVArray,
    Scores,
    ShapeError,
    ThreadPool,
    attend,
)
from spaninfer_kernels_cpu.attention import attention
from spaninfer_op_reference import CodeRange

NAN = np.float32(np.nan)
KINDS = [  # each costs seconds of compilation
    "bfloat16",
    "uint4",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("float32", "float16", "int8")),
]
SIZES = [(64, 64), (128, 96), (80, 72), (20, 12), (2, 2), (130, 66)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_keys_and_values_of_every_kind_are_read_as_they_are_defined(kind, sizes):
    problem = Problem(kind, sizes, heads=(4, 2), lengths=[1, 37, 200], new=[1, 5, 70])

    out = problem.attend(Scores(sizes[0] ** -0.5))

    np.testing.assert_allclose(out, problem.truth(sizes[0] ** -0.5), rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("kind", ["uint4", pytest.param("int8", marks=pytest.mark.slow)])
@pytest.mark.parametrize("sizes", [(128, 64), (40, 24), (70, 66), (6, 2)], ids=str)
def test_a_latent_and_the_rotary_part_behind_it_have_scales_of_their_own(kind, sizes):
    latent, rotary = sizes
    whole = latent + rotary
    problem = Problem(kind, (whole, latent), (6, 1), [1, 37, 200], [1, 5, 70], in_keys=True)

    scale = whole**-0.5 / 8  # as much as rotary parts are larger

    out = problem.attend(Scores(scale))

    np.testing.assert_allclose(out, problem.truth(scale), rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("kind", ["bfloat16", "uint4"])
@pytest.mark.parametrize("heads", [(1, 1), (7, 1), (70, 1), (128, 1), (6, 3)], ids=str)
def test_any_number_of_heads_shares_a_key(kind, heads):
    problem = Problem(kind, (32, 32), heads, lengths=[40, 129], new=[3, 1])

    out = problem.attend(Scores(0.2))

    np.testing.assert_allclose(out, problem.truth(0.2), rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("span_len", [1, 3, 16, 32, 64, 100])
@pytest.mark.parametrize("window", [None, 1, 17, 300])
def test_a_context_of_many_chunks_is_merged(span_len, window):
    problem = Problem("bfloat16", (16, 16), (2, 1), [700, 2000, 257], [1, 3, 1], span_len)

    out = problem.attend(Scores(0.25, window=window))

    expected = problem.truth(0.25, window=window)
    np.testing.assert_allclose(out, expected, rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("length", [5, 1000])
def test_sinks_take_their_share_of_the_softmax(length):
    problem = Problem("float32", (64, 64), (4, 2), [length], [2])
    sinks = np.array([-80, 0, 3, 90], np.float32)

    out = problem.attend(Scores(0.125, sinks=sinks))

    np.testing.assert_allclose(out, problem.truth(0.125, sinks=sinks), rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [None, 45])
@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize("alibi", [False, True])
def test_sinks_softcap_alibi_and_windows_go_together(kind, window, softcap, alibi):
    """ALiBi counts from the query: with sinks, which have no position, that makes a difference."""
    problem = Problem(kind, (64, 64), (6, 2), [1, 77, 600, 300], [1, 20, 1, 70])
    rng = np.random.default_rng(0)
    slopes = rng.uniform(0, 0.5, 6).astype(np.float32) if alibi else None
    named = {"softcap": softcap, "window": window, "slopes": slopes}
    sinks = 3 * rng.standard_normal(6, np.float32)

    out = problem.attend(Scores(0.13, **named, sinks=sinks))

    expected = problem.truth(0.13, **named, sinks=sinks)
    np.testing.assert_allclose(out, expected, rtol=3e-5, atol=3e-6)


def test_neither_other_requests_nor_threads_change_a_bit(monkeypatch):
    alone = Problem("uint4", (64, 64), (14, 2), [900], [1])
    together = Problem("uint4", (64, 64), (14, 2), [900, 500, 33], [1, 40, 1])

    first = alone.attend(Scores(0.125))
    with ThreadPool(5) as thread_pool:
        monkeypatch.setattr(attention, "shared_thread_pool", lambda: thread_pool)
        both = together.attend(Scores(0.125))

    np.testing.assert_array_equal(first, both[:1])


def test_keys_that_no_kernel_reads_are_named():
    problem = Problem("int8", (8, 8), (1, 1), [3], [1])

    with pytest.raises(DTypeError, match="keys hold float64"):
        attend(
            problem.query,
            *[problem.keys.numbers.astype(float)] * 2,
            problem.rows,
            Scores(1.0),
            out=None,
        )
    numbers = problem.keys.numbers, problem.values.numbers
    with pytest.raises(ShapeError, match="scales of keys: int8 keys and values need scales"):
        attend(problem.query, *numbers, problem.rows, Scores(1.0), out=None)
    keys = problem.keys.numbers.astype(np.float32)
    scaled = KVArray(keys, problem.keys.scales)
    with pytest.raises(ShapeError, match="scales of keys: float32 keys and values have no scales"):
        attend(problem.query, scaled, keys, problem.rows, Scores(1.0), out=None)
    latents = Problem("uint4", (8, 6), (1, 1), [3], [1], in_keys=True)
    for split, match in ((3, "an even one of 4 bits"), (8, r"\[... 8\] of uint4 are split at 8")):
        wrong = replace(latents.keys, split=split)
        with pytest.raises(ShapeError, match=match):
            attend(latents.query, wrong, latents.values, latents.rows, Scores(1.0), out=None)
    without = replace(latents.keys, split=None)
    with pytest.raises(ShapeError, match=r"scales of keys: expected shape \(2, 32, 1, 2\)"):
        attend(latents.query, without, latents.values, latents.rows, Scores(1.0), out=None)
    values = replace(latents.values, split=2)
    with pytest.raises(ShapeError, match="values are split at 2; only keys are"):
        attend(latents.query, latents.keys, values, latents.rows, Scores(1.0), out=None)


class Problem:
    """Requests of these lengths, of which the last `new` tokens are rows; unused slots hold NaN.

    `in_keys`: values are the first numbers of the keys, and the others eight times as large.
    """

    def __init__(self, kind, sizes, heads, lengths, new, span_len=32, *, in_keys=False):
        rng = np.random.default_rng(sum(sizes))
        (query_heads, kv_heads), (key_size, value_size) = heads, sizes
        counts = [-(-length // span_len) for length in lengths]
        self.tables = np.full((len(lengths), max(counts)), 2**30, np.int32)
        free = iter(rng.permutation(sum(counts) + 1))
        shape = (sum(counts) + 1, span_len, kv_heads)
        keys, values = (np.full((*shape, size), NAN) for size in sizes)
        queries, self.known = [], []
        for request, (length, count) in enumerate(zip(lengths, new, strict=True)):
            own = np.random.default_rng(request)
            self.tables[request, : counts[request]] = [next(free) for _ in range(counts[request])]
            span, slot = np.divmod(np.arange(length), span_len)
            place = self.tables[request, span], slot
            keys[place] = own.standard_normal((length, kv_heads, key_size))
            values[place] = own.standard_normal((length, kv_heads, value_size))
            queries.append(own.standard_normal((count, query_heads, key_size)))
            self.known.append((place, np.arange(length - count, length)))
        self.query = np.concatenate(queries).astype(np.float32)
        self.rows = AttentionBatch(
            self.tables,
            np.repeat(np.arange(len(lengths)), new).astype(np.int32),
            np.concatenate([positions for _, positions in self.known]).astype(np.int32),
        )
        if in_keys:
            self._store_latents(keys, value_size, kind)
            return
        self.keys, self.true_keys = stored(keys, kind)
        self.values, self.true_values = stored(values, kind)

    def _store_latents(self, keys, split, kind):
        (latent, self.true_values), (rotary, true_rotary) = (
            stored(part, kind) for part in (keys[..., :split], 8 * keys[..., split:])
        )
        numbers, scales = (
            np.concatenate([getattr(part, name) for part in (latent, rotary)], -1)
            for name in ("numbers", "scales")
        )
        self.keys = KVArray(numbers, scales, split)
        self.values = KVArray(numbers[..., : latent.numbers.shape[-1]], scales[..., :2])
        self.true_keys = np.concatenate([self.true_values, true_rotary], -1)

    def attend(self, scores):
        size = self.true_values.shape[-1]
        out = np.full((*self.query.shape[:2], size), NAN)
        attend(self.query, self.keys, self.values, self.rows, scores, out=out)
        return out

    def truth(self, scale, *, softcap=None, window=None, slopes=None, sinks=None):
        out, start = [], 0
        for place, positions in self.known:
            query = self.query[start : start + len(positions)].astype(float)
            start += len(positions)
            keys = np.arange(len(place[0]))
            bias = None if slopes is None else np.outer(slopes.astype(float), keys)
            part, lse = op_reference.attend_part(
                *(query, self.true_keys[place], self.true_values[place]),
                *(positions, keys),
                scale=scale,
                softcap=softcap,
                window=window,
                bias=bias,
            )
            if slopes is not None:  # the definition counts from the first key
                lse = lse - np.outer(positions, slopes.astype(float))
            if sinks is not None:
                part = part / (1 + np.exp(sinks.astype(float) - lse))[..., None]
            out.append(part)
        return np.concatenate(out)


def stored(x, kind):
    """x[S L K D] as the kernel reads it, and what it stands for in float64."""
    if kind in ("int8", "uint4"):
        codes = CodeRange.INT8 if kind == "int8" else CodeRange.UINT4
        flat = x.reshape(-1, *x.shape[2:])
        quantized = op_reference.quantize_cache(np.nan_to_num(flat), codes)
        scales = np.concatenate([quantized.zero, quantized.scale], -1).astype(np.float32)
        truth = (quantized.codes - quantized.zero.astype(float)) * quantized.scale.astype(float)
        bits = quantized.codes if kind == "int8" else op_reference.pack_nibbles(quantized.codes)
        scales[np.isnan(flat).all(-1)] = np.nan
        numbers = KVArray(bits.reshape(*x.shape[:3], -1), scales.reshape(*x.shape[:3], 2))
        return numbers, truth.reshape(x.shape)
    dtype = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[kind]
    return KVArray(x.astype(dtype)), x.astype(dtype).astype(float)
