"""Sampling against its definition in float64; all but the last tests need a GPU."""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from spaninfer_kernel_launch import (
    DeviceError,
    DTypeError,
    ShapeError,
    captured,
    get_gpu,
    new_stream,
)
from spaninfer_kernels_cuda import sample as kernels
from spaninfer_kernels_cuda.sample import (
    PARAMETERS,
    Busy,
    Logprobs,
    SampleBatch,
    Status,
    TokenLists,
    prepared,
    tuning,
)
from spaninfer_op_reference import RowSampling, log_softmax, process, sample, top_logprobs
from spaninfer_op_reference.candidates import keep_top_k, keep_typical, within_reach
from spaninfer_op_reference.sample import REACH

INF, NAN = np.inf, np.nan
TOP = 20


@dataclass(frozen=True)
class Batch:
    """What the kernels read, on the host: rows of one vocabulary, each with what it wants."""

    parameters: np.ndarray
    slots: np.ndarray
    positions: np.ndarray
    tokens: np.ndarray
    mask: np.ndarray
    lists: dict[str, np.ndarray]


def batch_of(rows, vocab, logprobs=(), *, buffer_len=None, scattered=True):
    """Return the batch of these rows; a row's slot is not its number, if `scattered`."""
    num_slots = len(rows) + 3
    slots = np.arange(len(rows), dtype=np.int32)
    if scattered:
        slots = np.random.default_rng(len(rows)).permutation(num_slots)[: len(rows)].astype("i4")
    known = [np.concatenate([row.prompt_ids, row.output_ids]) for row in rows]
    buffer_len = buffer_len or max([row.position for row in rows], default=0) + 2
    tokens = np.full((num_slots, buffer_len), -1, np.int32)
    mask = np.zeros((num_slots, -(-vocab // 32)), np.int32)
    records = kernels.defaults(num_slots)
    lists = {name: [] for name in ("bias_ids", "biases", "word_tokens", "end_ids")}
    bounds = [0]
    for number, (row, slot) in enumerate(zip(rows, slots, strict=True)):
        record = records[slot]
        for name in ("seed", "temperature", "top_k", "typical_p", "top_p", "min_p"):
            record[name] = getattr(row, name)
        record["repetition"] = row.repetition_penalty
        record["presence"], record["frequency"] = row.presence_penalty, row.frequency_penalty
        record["ngram"], record["prompt_len"] = row.no_repeat_ngram, len(row.prompt_ids)
        tokens[slot, : len(known[number])] = known[number]
        if row.logit_bias is not None:
            record["bias_first"], record["bias_count"] = (
                len(lists["bias_ids"]),
                len(row.logit_bias[0]),
            )
            lists["bias_ids"] += row.logit_bias[0].tolist()
            lists["biases"] += row.logit_bias[1].tolist()
        if row.allowed is not None:
            bits = np.zeros(mask.shape[1] * 32, bool)
            bits[row.allowed] = True
            mask[slot] = np.packbits(bits, bitorder="little").view(np.int32)
            record["masked"] = 1
        if row.banned is not None:
            record["end_first"], record["end_count"] = len(lists["end_ids"]), len(row.banned)
            record["end_until"] = row.position + 1
            lists["end_ids"] += row.banned.tolist()
        record["word_first"], record["word_count"] = len(bounds) - 1, len(row.bad_words)
        for word in row.bad_words:
            lists["word_tokens"] += word
            bounds.append(len(lists["word_tokens"]))
        if number < len(logprobs):
            record["logprobs"], record["processed"] = logprobs[number]
    lists = {
        name: np.array([*values, 0], np.float32 if name == "biases" else np.int32)
        for name, values in lists.items()
    }
    lists["word_bounds"] = np.array(bounds, np.int32)
    positions = np.array([row.position for row in rows], np.int32)
    return Batch(records, slots, positions, tokens, mask, lists)


def is_explained(token, logits, row):
    """Is this what the definition draws, but for the rounding of a probability at a cut?"""
    near = [
        replace(
            row,
            typical_p=min(row.typical_p * (1 + 10 * c), 1.0),
            top_p=min(row.top_p * (1 + a), 1.0),
            min_p=row.min_p * (1 + b),
        )
        for a in (0, -1e-6, 1e-6)
        for b in (0, -1e-6, 1e-6)
        for c in ((0,) if row.typical_p == 1 else (0, -1e-6, 1e-6))
    ]
    return any(sample(logits[None], [other])[0][0] == token for other in near)


def check(logits, rows, tokens, status):
    """Compare with the definition in float64, row by row."""
    exact = logits.astype(np.float64)
    expected, failed = sample(exact, rows)
    for number, row in enumerate(rows):
        if number in failed:
            assert status[number] != Status.SAMPLED, number
            assert tokens[number] == 0
            continue
        assert status[number] == Status.SAMPLED, (number, status[number])
        if tokens[number] != expected[number]:
            assert is_explained(tokens[number], exact[number], row), (number, row)


class Device:
    """The kernels over arrays of one framework."""

    def __init__(self, on_gpu):
        self.on_gpu = on_gpu

    def run(
        self,
        logits,
        batch,
        *,
        penalties=False,
        masked=False,
        logprobs=False,
        typical=False,
        busy=None,
    ):
        """Return tokens, status, the token buffer afterwards, and log-probabilities.

        `kept` is then the mask of the tokens that typical_p keeps, of rows without a mask or
        penalties.
        """
        put, get = self.on_gpu.put, self.on_gpu.get
        rows, vocab = logits.shape
        step = kernels.prepare(
            rows=rows,
            length=vocab,
            dtype=logits.dtype,
            gpu=get_gpu(),
            token_stride=batch.tokens.shape[1],
            top=TOP,
        )
        out, status = (put(np.full(rows, -7, np.int32)) for _ in range(2))
        tokens = put(batch.tokens)
        told = [
            put(np.full(rows, NAN, np.float32)),
            put(np.full(rows, -7, np.int32)),
            put(np.full((rows, TOP), -7, np.int32)),
            put(np.full((rows, TOP), NAN, np.float32)),
        ]
        workspace = put(np.full(step.workspace_bytes, 0xCD, np.uint8)) if penalties else 0
        kept = put(np.full(step.kept_bytes, 0xCD, np.uint8)) if typical else 0
        step.launch(
            SampleBatch(
                put(logits),
                parameters=put(batch.parameters.view(np.uint8).reshape(-1, PARAMETERS.itemsize)),
                slots=put(batch.slots),
                positions=put(batch.positions),
                mask=put(batch.mask) if masked else 0,
                workspace=workspace,
                kept=kept,
            ),
            out=(out, status),
            tokens=tokens,
            lists=TokenLists(**{name: put(array) for name, array in batch.lists.items()}),
            logprobs=Logprobs(*told) if logprobs else None,
            busy=busy,
        )
        if typical:
            logits_kept = get(kept).reshape(rows, -1).view(logits.dtype)[:, :vocab]
            self.kept = logits_kept.astype(np.float32) > -INF
        return get(out), get(status), get(tokens), [get(array) for array in told]


@pytest.fixture
def device(on_gpu):
    return Device(on_gpu)


def logits_of(kind, rows, vocab, dtype=np.float32, seed=0):
    """Rows as models make them, and such as are hard on a truncation."""
    draw = np.random.default_rng(seed)
    normal = draw.standard_normal((rows, vocab), dtype=np.float32)
    match kind:
        case "normal":
            x = normal
        case "wide":
            x = 4 * normal
        case "peaked":  # a few tokens far above the rest
            x = normal.copy()
            x[:, draw.integers(0, vocab, 5)] += 12
        case "constant":
            x = np.full_like(normal, 0.5)
        case "few values":
            x = draw.integers(0, 3, normal.shape).astype(np.float32)
        case "rising":
            x = np.sort(normal, axis=1)
        case "low":  # far below zero, as if a large constant had been taken away
            x = normal - 1000
        case "zeros":
            x = np.where(normal > 0, 0.0, -0.0)
        case "mostly impossible":
            x = np.where(normal > 2, normal, -INF)
    return x.astype(np.float32).astype(dtype)


KINDS = [
    *("normal", "wide", "peaked", "constant", "few values", "rising", "low", "zeros"),
    "mostly impossible",
]
BATCHES = [1, 17, 21, 30, 32, 64, 131]  # rows; an H200 gives each 8, 6, 5, 4, 3, 2, 1 blocks


def requests_of_all_kinds(seed=0):
    """Rows that ask for every cut alone and for several together."""
    wanted = [
        dict(temperature=0.0),
        dict(),
        dict(temperature=0.7),
        dict(temperature=1.7),
        dict(temperature=0.05),
        dict(top_k=1),
        dict(top_k=50),
        dict(top_k=1000),
        dict(top_k=5000),
        dict(top_k=10**6),
        dict(top_p=0.9),
        dict(top_p=0.5, temperature=0.3),
        dict(top_p=0.001),
        dict(top_p=0.999, temperature=1.5),
        dict(min_p=0.1),
        dict(min_p=0.001, temperature=0.5),
        dict(top_k=50, top_p=0.9),
        dict(top_k=50, top_p=0.9, min_p=0.05, temperature=0.8),
        dict(top_k=5000, top_p=0.95),
        dict(top_p=0.95, min_p=0.02),
        dict(top_k=10**6, top_p=0.8),
    ]
    return [
        RowSampling(seed=2**63 + 977 * seed + i, position=seed * 31 + i, **each)
        for i, each in enumerate(wanted)
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", [1, 5, 1009, 32_000, 151_936])
def test_a_mixed_batch_draws_what_the_definition_draws(device, kind, vocab):
    rows = requests_of_all_kinds(seed=vocab)
    logits = logits_of(kind, len(rows), vocab, seed=vocab)
    batch = batch_of(rows, vocab)

    tokens, status, buffer, _ = device.run(logits, batch)

    check(logits, rows, tokens, status)
    expected = batch.tokens.copy()
    expected[batch.slots, batch.positions] = tokens
    np.testing.assert_array_equal(buffer, expected)


def typical_requests(seed=0):
    """Rows with a typical_p, alone and with every other cut; and one without."""
    wanted = [
        *(dict(typical_p=p, temperature=t) for p in (0.05, 0.5, 0.95) for t in (0.4, 1.0, 2.0)),
        dict(typical_p=0.9999),
        dict(typical_p=1e-6),
        dict(typical_p=0.5, top_k=1),
        dict(typical_p=0.5, top_k=40),
        dict(typical_p=0.9, top_k=5000, top_p=0.7),
        dict(typical_p=0.6, top_p=0.5, min_p=0.3),
        dict(typical_p=0.5, temperature=0.0),
        dict(top_p=0.9),
    ]
    return [RowSampling(seed=5 + i, position=seed + i, **each) for i, each in enumerate(wanted)]


def assert_typical(kept, logits, row):
    """The kernel keeps what the definition keeps, but for deviations that rounding may swap."""
    candidates = within_reach(process(logits.astype(np.float64), row), REACH)
    if row.top_k:
        candidates = keep_top_k(candidates, row.top_k)
    wanted = np.isin(candidates.ids, keep_typical(candidates, row.typical_p).ids)
    assert not np.delete(kept, candidates.ids).any()
    logs = log_softmax(candidates.logits)
    deviations = np.abs(logs - (np.exp(logs) * logs).sum())
    edge = deviations[wanted].max()
    moved = kept[candidates.ids] != wanted
    assert np.abs(deviations[moved] - edge).max(initial=0) < 1e-3, row
    assert np.exp(logs[moved]).sum() < max(1e-4, 1.001 * np.exp(logs).max()), row


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", [1, 5, 1009, 151_936])
def test_typical_sampling_keeps_what_the_definition_keeps(device, kind, vocab):
    rows = typical_requests(seed=vocab)
    logits = logits_of(kind, len(rows), vocab, seed=vocab)

    tokens, status, _, _ = device.run(logits, batch_of(rows, vocab), typical=True)

    for number, row in enumerate(rows):
        if status[number] == Status.SAMPLED and row.typical_p < 1 and not row.is_greedy:
            assert_typical(device.kept[number], logits[number], row)
    check(logits, rows, tokens, status)


@pytest.mark.gpu
@pytest.mark.parametrize("count", BATCHES)
def test_typical_sampling_of_masked_and_penalised_rows_in_16_bits(device, count):
    vocab, draw = 32_000, np.random.default_rng(count)
    plain = typical_requests(seed=count)
    rows = [
        replace(
            plain[i % len(plain)],
            position=9,
            allowed=np.flatnonzero(draw.random(vocab) < 0.3) if i % 2 else None,
            repetition_penalty=1.3,
            prompt_ids=draw.integers(0, vocab, 6),
            output_ids=draw.integers(0, vocab, 3),
        )
        for i in range(count)
    ]
    logits = logits_of("wide", count, vocab, ml_dtypes.bfloat16, seed=count)

    flags = dict(penalties=True, masked=True, logprobs=True, typical=True)
    batch = batch_of(rows, vocab, logprobs=[(3, True)] * count)
    tokens, status, _, (chosen, *_) = device.run(logits, batch, **flags)

    check(logits, rows, tokens, status)
    for number, row in enumerate(rows):
        logs = log_softmax(process(logits[number].astype(np.float64), row))
        assert abs(chosen[number] - logs[tokens[number]]) < 1e-3, number


@pytest.mark.gpu
def test_rows_without_a_token_say_so_with_a_typical_p(device):
    rows = [RowSampling(seed=1, position=3, typical_p=0.5)] * 4
    logits = np.zeros((4, 40_000), np.float32)
    logits[0], logits[1, 7], logits[2, 39_999] = -INF, INF, NAN

    tokens, status, _, _ = device.run(logits, batch_of(rows, 40_000), typical=True)

    wanted = [Status.ALL_MASKED, Status.INFINITE, Status.NOT_A_NUMBER, Status.SAMPLED]
    assert status.tolist() == wanted
    assert tokens[:3].tolist() == [0, 0, 0]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("vocab", [1009, 50_257])
def test_sixteen_bit_logits_are_full_of_equal_values(device, dtype, vocab):
    rows = requests_of_all_kinds(seed=3)
    logits = logits_of("wide", len(rows), vocab, dtype)

    tokens, status, _, _ = device.run(logits, batch_of(rows, vocab))

    check(logits, rows, tokens, status)


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", BATCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_a_row_in_memory_is_no_part_of_it(on_gpu, kind, num_rows):
    # Rows that neither begin nor end where a pack does. The first wish keeps so much that the bins
    # beside the list do not say where the cut is: all blocks then search the row itself.
    vocab, before = 1009, 3
    wishes = requests_of_all_kinds(seed=num_rows)
    rows = ((wishes[13:] + wishes[:13]) * 7)[:num_rows]
    logits = logits_of(kind, num_rows, vocab, seed=num_rows)
    wide = np.full((num_rows, before + vocab + 8), np.finfo(np.float32).max, np.float32)
    wide[:, before : before + vocab] = logits
    batch = batch_of(rows, vocab)

    tokens, status = kernels.sample(
        on_gpu.put(wide)[:, before : before + vocab],
        parameters=on_gpu.put(batch.parameters.view(np.uint8).reshape(-1, PARAMETERS.itemsize)),
        slots=on_gpu.put(batch.slots),
        positions=on_gpu.put(batch.positions),
    )

    check(logits, rows, on_gpu.get(tokens), on_gpu.get(status))


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [*BATCHES, 2, 300])
def test_a_row_draws_the_same_alone_and_in_any_batch(device, num_rows):
    rows = (requests_of_all_kinds(5) * 15)[:num_rows]
    logits = np.tile(logits_of("normal", 21, 40_009, seed=9), (15, 1))[:num_rows]

    tokens, status, _, _ = device.run(logits, batch_of(rows, 40_009))

    first, _ = sample(logits[:21].astype(np.float64), rows[:21])
    np.testing.assert_array_equal(tokens, np.tile(first, 15)[:num_rows])
    assert (status == Status.SAMPLED).all()


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [48, 9001])
def test_over_many_draws_a_cut_keeps_neither_more_nor_less(device, vocab):
    draw = np.random.default_rng(vocab)
    cuts = [("top_k", 1, 7), ("top_p", 0.05, 0.9), ("min_p", 0.1, 0.9)]
    rows = []
    for i in range(300):
        name, least, most = cuts[i % 3]
        value = draw.uniform(least, most)
        cut = {name: round(value) if name == "top_k" else float(np.float32(value))}
        rows.append(RowSampling(seed=i, position=1, temperature=2.0, **cut))
    logits = np.full((300, vocab), -30, np.float32)
    logits[:, :: vocab // 12] = draw.standard_normal(logits[:, :: vocab // 12].shape)

    tokens, status, _, _ = device.run(logits, batch_of(rows, vocab))

    check(logits, rows, tokens, status)


def wishes_with_everything(vocab):
    """Rows that ask for masks, bias, bans and penalties, alone and together."""
    draw = np.random.default_rng(vocab)

    def some(count):
        return draw.permutation(vocab)[:count]

    def made(**wanted):
        prompt, output = draw.integers(0, vocab, 37), draw.integers(0, min(vocab, 40), 60)
        output[-1] = output[-3]
        return RowSampling(
            seed=int(draw.integers(2**62)),
            position=97,
            prompt_ids=prompt,
            output_ids=output,
            **wanted,
        )

    bias = (some(min(vocab, 30)), draw.uniform(-5, 5, min(vocab, 30)).astype(np.float32))
    together = dict(
        logit_bias=bias,
        banned=some(3),
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        no_repeat_ngram=3,
        allowed=some(vocab // 2 + 1),
    )
    return [
        made(temperature=0.0, repetition_penalty=1.5),
        made(temperature=0.0, presence_penalty=1.0),
        made(frequency_penalty=0.5, top_p=0.9),
        made(frequency_penalty=-0.5, presence_penalty=-1.0),
        made(repetition_penalty=0.7, top_k=20),
        made(logit_bias=bias, temperature=0.0),
        made(logit_bias=bias, temperature=0.6, min_p=0.01),
        made(banned=some(min(vocab - 1, 200)), temperature=0.0),
        made(allowed=some(max(vocab // 3, 1)), temperature=0.9),
        made(allowed=some(2), temperature=0.9, top_p=0.7),
        made(allowed=some(1), temperature=0.0),
        made(no_repeat_ngram=1, temperature=0.0),
        made(no_repeat_ngram=2, top_k=40),
        made(bad_words=[[3], [5, 6, 7], some(2).tolist()], temperature=0.0),
        made(temperature=0.0, **together),
        made(temperature=0.8, top_k=40, top_p=0.95, **together),
        made(),
        made(temperature=0.0),
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [41, 1009, 151_936])
def test_bias_masks_bans_and_penalties_come_in_their_order(device, vocab):
    rows = wishes_with_everything(vocab)
    tails = [np.concatenate([row.prompt_ids, row.output_ids])[-2:].tolist() for row in rows]
    rows[13] = replace(rows[13], bad_words=[*rows[13].bad_words, [*tails[13], 11]])
    logits = logits_of("wide", len(rows), vocab, seed=vocab)
    logits[13, 11] = 30

    tokens, status, _, _ = device.run(logits, batch_of(rows, vocab), penalties=True, masked=True)

    check(logits, rows, tokens, status)


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [7, 1009, 151_936])
@pytest.mark.parametrize("kind", ["normal", "peaked", "few values", "mostly impossible"])
def test_log_probabilities_are_those_of_the_definition(device, kind, vocab):
    rows = wishes_with_everything(vocab)
    asked = [((i * 7) % (TOP + 1), i % 2) for i in range(len(rows))]
    asked[4] = (-1, 0)
    logits = logits_of(kind, len(rows), vocab, seed=vocab + 1)

    tokens, status, _, told = device.run(
        logits, batch_of(rows, vocab, asked), penalties=True, masked=True, logprobs=True
    )

    for i, row in enumerate(rows):
        chosen, rank, top_ids, top = (array[i] for array in told)
        count, processed = asked[i]
        if count < 0 or status[i] != Status.SAMPLED:
            assert np.isnan(chosen)
            assert rank == -7
            assert (top_ids == -7).all()
            continue
        seen = logits[i].astype(np.float64)
        found = top_logprobs(
            (process(seen, row) if processed else seen)[None], tokens[i : i + 1], count
        )
        np.testing.assert_allclose(chosen, found.chosen[0], rtol=2e-6, atol=2e-6)
        finite = np.isfinite(found.top[0])
        np.testing.assert_allclose(top[: finite.sum()], found.top[0][finite], rtol=2e-6, atol=2e-6)
        assert (top_ids[finite.sum() : len(finite)] == -1).all()
        if not processed:  # penalties in float32 may change which of two is larger
            assert rank == found.rank[0]
            np.testing.assert_array_equal(top_ids[: finite.sum()], found.top_ids[0][finite])
        assert (top_ids[len(finite) :] == -7).all()


@pytest.mark.gpu
def test_rows_that_few_others_stand_beside_say_the_same_to_the_last_bit(device):
    vocab, count = 50_001, 64
    rows = [
        RowSampling(seed=i, position=i, typical_p=0.8 if i % 10 == 3 else 1) for i in range(count)
    ]
    logits = logits_of("normal", count, vocab)
    batch = batch_of(rows, vocab, [(5, 0) if i % 10 == 3 else (-1, 0) for i in range(count)])

    few, all_rows = (
        device.run(logits, batch, logprobs=True, typical=True, busy=busy)
        for busy in (Busy(typical=7, logprobs=7), None)
    )

    for tokens_or_status in range(3):
        np.testing.assert_array_equal(few[tokens_or_status], all_rows[tokens_or_status])
    for ours, theirs in zip(few[3], all_rows[3], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [150_001, 151_936])
@pytest.mark.parametrize(("dtype", "blocks"), [(np.float32, 8), (ml_dtypes.bfloat16, 2)])
def test_rows_that_blocks_hold_say_the_same_as_rows_that_are_read_again(
    device, monkeypatch, vocab, dtype, blocks
):
    # As many blocks as hold such a row in the shared memory of an H200, not in that of the ring.
    monkeypatch.setattr(
        prepared, "blocks_of_row", lambda _, at_once: blocks if blocks in at_once else 1
    )
    rows = [
        RowSampling(seed=i, position=i, typical_p=0.8, **each)
        for i, each in enumerate([{}, dict(top_k=40), dict(temperature=0.3)] * 3)
    ]
    logits = logits_of("normal", len(rows), vocab, dtype)
    logits[6:] = 0.5  # equal deviations, which no bin tells apart
    batch = batch_of(rows, vocab, [(5, 0)] * len(rows))
    flags = dict(logprobs=True, typical=True, busy=Busy(typical=9, logprobs=9))

    held = *device.run(logits, batch, **flags), device.kept
    monkeypatch.setattr(prepared, "held_packs", lambda *_, **__: 2**20)  # more than there is room
    read = *device.run(logits, batch, **flags), device.kept

    for ours, theirs in zip((*held[3], held[4]), (*read[3], read[4]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(held[0], read[0])


H200_AT_ONCE = {2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15, 16: 7}


def launches_of(monkeypatch, *, rows, row_bytes, arch="sm_90a", block_bytes=232_448):
    """A kernel whose blocks share rows, the launches that it prepared, and those that it used."""
    made, used = [], []

    def call_of(_kernel, launch, *constants):
        assert constants == ((1, 2),)
        made.append(launch)
        return lambda *_: used.append(launch)

    monkeypatch.setattr(prepared, "Call", call_of)
    monkeypatch.setattr(prepared, "_at_once", lambda _: H200_AT_ONCE)
    gpu = SimpleNamespace(arch=arch, shared_bytes=block_bytes)
    return prepared._Shared(SimpleNamespace(gpu=gpu), rows, row_bytes, (1, 2)), made, used


def test_the_fewer_rows_have_work_the_more_blocks_share_each(monkeypatch):
    kernel, made, used = launches_of(monkeypatch, rows=64, row_bytes=2 * 151_936)

    for busy in (None, 64, 16, 8, 7, 0, 100, 7):
        kernel(stream=5, arguments=(), busy=busy)

    assert [launch.grid for launch in made] == [(2, 64, 1), (6, 17, 1), (8, 15, 1), (16, 7, 1)]
    assert [launch.cluster for launch in made] == [(2, 1, 1), (6, 1, 1), (8, 1, 1), (16, 1, 1)]
    assert [launch.grid[0] for launch in used] == [2, 2, 6, 8, 16, 16, 2, 16]


@pytest.mark.parametrize("rows", [1, 7, 15, 16, 64, 200])
@pytest.mark.parametrize("busy", [None, 1, 7, 15, 16, 30, 64, 200])
def test_there_is_a_cluster_for_every_row_with_work(monkeypatch, rows, busy):
    kernel, _, used = launches_of(monkeypatch, rows=rows, row_bytes=2 * 151_936)

    kernel(stream=5, arguments=(), busy=busy)

    (launch,) = used
    blocks, clusters, _ = launch.grid
    assert min(rows if busy is None else busy, rows) <= clusters <= rows
    assert clusters == rows or clusters <= H200_AT_ONCE[blocks]


@pytest.mark.parametrize("length", [1, 16_384, 151_936, 262_144, 1_000_000])
@pytest.mark.parametrize("busy", [1, 16, 64])
def test_blocks_hold_a_row_where_shared_memory_has_the_room(monkeypatch, length, busy):
    kernel, _, used = launches_of(monkeypatch, rows=64, row_bytes=2 * length)

    kernel(stream=5, arguments=(), busy=busy)

    (launch,) = used
    shape = tuning.SHAPES["sm_90a"]
    lists = tuning.shared_bytes(shape)  # with a ring of packs to read through
    packs = math.ceil(2 * length / (16 * shape.threads * launch.grid[0]))  # a thread's of a block's
    held = tuning.LIST_BYTES + 16 * packs * shape.threads
    assert launch.shared_bytes == (lists if held > 232_448 else max(lists, held))
    assert launch.shared_bytes <= 232_448


@pytest.mark.gpu
@pytest.mark.parametrize("blocks", [2, 1, 3, 8, 16])
def test_however_many_blocks_share_a_row_it_draws_the_same(device, monkeypatch, blocks):
    # Every kernel and every way to a cut in one launch of few blocks: compute-sanitizer looks for
    # races here alone, for which it takes seconds per row (`nox -s sanitize`).
    monkeypatch.setattr(
        prepared, "blocks_of_row", lambda _, at_once: blocks if blocks in at_once else 1
    )
    vocab = 6007
    rows = [
        RowSampling(seed=i, position=i, **wanted)
        for i, wanted in enumerate(
            [
                dict(temperature=0.0),
                dict(temperature=0.7),
                dict(min_p=0.1),
                dict(top_k=50, top_p=0.9, min_p=0.05),  # in the list
                dict(top_p=0.9),  # below it, in a small zone
                dict(top_p=0.9),  # of equal logits: in the row, by index
                dict(top_k=5000),  # in the row, the list being too short
                dict(typical_p=0.8),
                dict(typical_p=0.8, top_k=5000),
            ]
        )
    ]
    rows.append(wishes_with_everything(vocab)[15])
    logits = logits_of("normal", len(rows), vocab)
    logits[5] = 0.5
    batch = batch_of(rows, vocab, [(-1, 0)] * 9 + [(5, 1)])
    flags = dict(penalties=True, masked=True, logprobs=True, typical=True)

    tokens, status, _, told = device.run(logits, batch, **flags)

    check(logits, rows, tokens, status)
    expected = process(logits[9].astype(np.float64), rows[9])
    found = top_logprobs(expected[None], tokens[9:], 5)
    np.testing.assert_allclose(told[0][9], found.chosen[0], rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(told[3][9][:5], found.top[0], rtol=2e-6, atol=2e-6)


@pytest.mark.gpu
def test_rows_that_have_no_token_are_told_apart_and_harm_no_other(device):
    vocab = 5003
    logits = logits_of("normal", 8, vocab)
    logits[0, 4000] = NAN
    logits[1, 17] = INF
    logits[2] = -INF
    logits[3, 5] = NAN
    logits[5, 5000] = -INF
    wanted = [dict(temperature=0.0), dict(), dict(), dict(top_k=5), dict(), dict(top_p=0.5)]
    rows = [RowSampling(seed=i, **each) for i, each in enumerate(wanted)]
    rows += [RowSampling(seed=9, allowed=np.zeros(0, int)), RowSampling(seed=10, top_p=0.3)]

    tokens, status, _, _ = device.run(logits, batch_of(rows, vocab), masked=True)

    assert status.tolist() == [3, 2, 1, 3, 0, 0, 1, 0]
    check(logits, rows, tokens, status)


@pytest.mark.gpu
def test_rows_of_padding_are_left_alone(device):
    rows = [RowSampling(seed=i, position=i) for i in range(6)]
    logits = logits_of("normal", 6, 3001)
    logits[[1, 4]] = NAN
    batch = batch_of(rows, 3001)
    slots = batch.slots.copy()
    slots[[1, 4]] = -1

    tokens, status, buffer, _ = device.run(logits, replace(batch, slots=slots))

    assert (tokens[[1, 4]] == -7).all()
    assert (status[[1, 4]] == -7).all()
    assert (buffer[batch.slots[[1, 4]]] == -1).all()
    others = [0, 2, 3, 5]
    check(logits[others], [rows[i] for i in others], tokens[others], status[others])


@pytest.mark.gpu
def test_captured_once_it_serves_whatever_rows_then_ask_for(on_gpu):
    gpu, vocab = get_gpu(), 20_011
    put, get = on_gpu.put, on_gpu.get
    rows = requests_of_all_kinds()
    step = kernels.prepare(rows=len(rows), length=vocab, dtype=np.float32, gpu=gpu)
    batch = batch_of(rows, vocab, scattered=False)
    records = put(batch.parameters.view(np.uint8).reshape(-1, PARAMETERS.itemsize))
    logits, positions = put(np.zeros((len(rows), vocab), np.float32)), put(batch.positions)
    slots = put(batch.slots)
    out, status = (put(np.full(len(rows), -7, np.int32)) for _ in range(2))

    def launch(stream, _):
        step.launch(
            SampleBatch(logits, records, slots, positions), out=(out, status), stream=stream
        )

    with gpu.current(), new_stream() as stream, captured(stream, launch) as replay:
        for seed in range(3):
            rows = requests_of_all_kinds(seed)[seed:] + requests_of_all_kinds(seed)[:seed]
            now, batch = (
                logits_of("wide", len(rows), vocab, seed=seed),
                batch_of(rows, vocab, scattered=False),
            )
            logits[:], positions[:] = put(now), put(batch.positions)
            records[:] = put(batch.parameters.view(np.uint8).reshape(-1, PARAMETERS.itemsize))
            on_gpu.wait()
            replay()
            on_gpu.wait()

            check(now, rows, get(out), get(status))


@pytest.mark.gpu
def test_the_friendly_function_makes_its_results(on_gpu):
    rows = requests_of_all_kinds()
    wide = logits_of("normal", len(rows), 1100)
    batch = batch_of(rows, 1009)
    given = {
        "parameters": batch.parameters.view(np.uint8).reshape(-1, PARAMETERS.itemsize),
        "slots": batch.slots,
        "positions": batch.positions,
    }

    tokens, status = kernels.sample(
        on_gpu.put(wide)[:, 3:1012], **{name: on_gpu.put(array) for name, array in given.items()}
    )

    check(wide[:, 3:1012], rows, on_gpu.get(tokens), on_gpu.get(status))


@pytest.mark.gpu
def test_no_rows_are_no_launch(device):
    tokens, status, _, _ = device.run(np.zeros((0, 100), np.float32), batch_of([], 100))

    assert tokens.shape == status.shape == (0,)


def test_arrays_in_host_memory_are_refused():
    with pytest.raises(DeviceError, match="logits lies in cpu memory"):
        kernels.sample(
            np.zeros((2, 100), np.float32),
            parameters=np.zeros((2, 88), np.uint8),
            slots=np.zeros(2, np.int32),
            positions=np.zeros(2, np.int32),
        )


def test_records_of_another_size_are_refused():
    with pytest.raises(ShapeError, match="parameters: axis 1 is 80, but the kernel needs 88"):
        kernels.sample(
            np.zeros((2, 100), np.float32),
            parameters=np.zeros((2, 80), np.uint8),
            slots=np.zeros(2, np.int32),
            positions=np.zeros(2, np.int32),
        )


def test_records_that_begin_inside_of_a_number_are_refused():
    memory = np.zeros(2 * 88 + 1, np.uint8)

    with pytest.raises(ShapeError, match="parameters must begin at a multiple of 8 bytes"):
        kernels.sample(
            np.zeros((2, 100), np.float32),
            parameters=memory[1:].reshape(2, 88),
            slots=np.zeros(2, np.int32),
            positions=np.zeros(2, np.int32),
        )


def test_types_without_a_kernel_are_refused():
    with pytest.raises(DTypeError, match="int32"):
        kernels.variant_for(np.int32, "sm_90a")
