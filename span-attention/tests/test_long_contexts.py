"""Contexts of up to 2^18 tokens in one batch, in a cache larger than 2^31 elements.

Every 16 tokens carry a mark, a large value in one element: another one in the next 16, and each of
the elements in 2048 in a row. So 16 tokens that are lost, or read instead of others, change an
element of the longest result by 1/128. Rounding the result to bfloat16 changes it by 1/256 at
most; of other rounding errors, which have random signs, little is left in a sum of so many. All of
the cache that no token owns is NaN, and the truth is worked out by torch in float64 from what
indexing finds in the cache.
"""

import math

import pytest
from span_attention import BatchDecode, BatchPrefill, Format, SpanLayout, Spans, append
from spaninfer_op_reference import tolerance

LONGEST = 2**18
CHUNK = 128  # rows of the longest request that are appended last, and prefilled
LENGTHS = (1, 4097, 2, LONGEST, 31, 0, 128, 33, 700)
POOL_BYTES = 5 * 2**30  # more than 2^31 elements of 16 bits
HEADS, KV_HEADS, SIZE, SPAN_LEN, LAYERS, LAYER = 14, 2, 128, 32, 20, 19
CLOSE = 1.5 / 256
# The largest distance between neighbouring numbers of a format, of a token's extent.
STEPS = {Format.BFLOAT16: 0, Format.FP8: 1 / 28, Format.INT8: 1 / 255, Format.UINT4: 1 / 15}
AT_ONCE = 8  # rows that the truth is worked out for at once: 0.5 GB

pytestmark = pytest.mark.gpu


@pytest.fixture(
    params=[Format.BFLOAT16, Format.FP8, Format.INT8, Format.UINT4], ids=lambda it: it.label
)
def pool(request):
    """A cache of this format that holds the tokens of all requests."""
    return Pool(pytest.importorskip("torch", reason="torch is not installed"), request.param)


def test_what_is_appended_behind_32_bits_of_bytes_is_found_there(pool):
    slot, given = pool.appended
    for x, place in zip(given, pool.parts, strict=True):
        kept, x = pool.kept(*place, (slot // SPAN_LEN, slot % SPAN_LEN)), x.double()
        extent = x.amax(-1, keepdim=True).clamp(min=0) - x.amin(-1, keepdim=True).clamp(max=0)
        assert ((kept - x).abs() <= STEPS[pool.format] * extent).all()


def test_one_batch_decodes_a_quarter_million_tokens_beside_single_ones(pool):
    query = pool.query(len(LENGTHS))
    lengths = pool.put(LENGTHS)

    attention = BatchDecode(pool.layout, num_heads=query.shape[1], dtype=query.dtype)
    attention.plan(lengths, pool.tables, table_rows=pool.rows)
    out = attention.run(query, pool.spans, softmax_scale=pool.scale)

    for request, length in enumerate(LENGTHS):
        own = slice(request, request + 1)
        pool.check(out[own], query[own], request, length)


@pytest.mark.parametrize("splits", [False, True], ids=["tasks whole", "tasks shared"])
def test_a_chunk_at_the_end_of_a_quarter_million_tokens_attends_to_all_of_them(pool, splits):
    request = LENGTHS.index(LONGEST)
    short = LENGTHS.index(700)
    query = pool.query(CHUNK + 1)

    attention = BatchPrefill(
        pool.layout, num_heads=query.shape[1], dtype=query.dtype, splits=splits
    )
    attention.plan(
        pool.put([0, 1, CHUNK + 1]),
        pool.put([700, LONGEST]),
        pool.tables,
        table_rows=pool.rows[[short, request]],
        num_tokens=CHUNK + 1,
    )
    out = attention.run(query, pool.spans, softmax_scale=pool.scale)

    pool.check(out[:1], query[:1], short, 700)
    pool.check(out[1:], query[1:], request, LONGEST)


class Pool:
    """The spans of all requests, scattered over a cache; their last tokens come by `append`."""

    def __init__(self, torch, format):
        self.torch, self.format, self.scale = torch, format, SIZE**-0.5
        is_plain = format is Format.BFLOAT16
        self.dtype = torch.bfloat16 if is_plain else torch.float16  # of queries and results
        self.layout = SpanLayout.contiguous(
            span_len=SPAN_LEN,
            kv_heads=KV_HEADS,
            key_size=SIZE,
            value_size=SIZE,
            format=format,
            num_layers=LAYERS,
        )
        self.draw = torch.Generator("cuda").manual_seed(0)
        needed = [-(-length // SPAN_LEN) for length in LENGTHS]
        num_spans = max(POOL_BYTES // self.layout.span_bytes, sum(needed) + len(LENGTHS))
        self.cache = torch.full(
            (num_spans * self.layout.span_bytes,), 255, dtype=torch.uint8, device="cuda"
        )
        self.spans = Spans(self.cache, self.layout, LAYER)
        scattered = torch.randperm(num_spans - len(LENGTHS), device="cuda", generator=self.draw)
        self.rows = torch.randperm(len(LENGTHS), device="cuda", generator=self.draw).int()
        self.tables = torch.full((len(LENGTHS), max(needed)), 2**30, dtype=torch.int32).cuda()
        numbers = scattered[: sum(needed)].int().split(needed)
        for request, (row, spans) in enumerate(zip(self.rows.tolist(), numbers, strict=True)):
            self.tables[row, : len(spans)] = spans
            if len(spans):  # what is appended lies behind 2^32 bytes
                self.tables[row, len(spans) - 1] = num_spans - 1 - request
        self.fill()
        torch.cuda.synchronize()

    def fill(self):
        """Write the tokens of all requests: the last of each, and the chunk, by `append`."""
        torch, slots = self.torch, []
        for request, length in enumerate(LENGTHS):
            spans, tokens = self.places(request, length)
            old = length - min(length, CHUNK if length == LONGEST else 1)
            self.write_old((spans[:old], tokens[:old]), old)
            slots.append((spans * SPAN_LEN + tokens)[old:])
        slot = torch.cat(slots)
        query, key, value = (
            self.random(len(slot), heads, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS)
        )
        append.append(query, key, value, slot.int(), spans=self.spans)
        self.appended = slot, (key, value)

    def write_old(self, where, count):
        """Write `count` random tokens of a request; their values are marked."""
        torch = self.torch
        for place, numbers in self.parts:
            codes, beside = self.drawn(count)
            if place is self.layout.values:
                positions = torch.arange(count, device="cuda")
                codes = self.middle(codes)
                codes[positions, :, marked(positions)] = self.mark
            self.field(place, self.code_bytes)[where] = self.packed(codes)
            if numbers is not None:
                bits = beside.view(torch.uint8)
                self.field(numbers, bits.shape[-1])[where] = bits

    def query(self, rows):
        """Queries whose scores deviate by 0.5 in even heads, and by 1.5 in odd ones."""
        query = self.random(rows, HEADS, SIZE)
        query[:, ::2] *= 0.5
        query[:, 1::2] *= 1.5
        return query

    def random(self, *shape):
        numbers = self.torch.randn(shape, device="cuda", generator=self.draw)
        return numbers.to(self.dtype)

    def put(self, numbers):
        return self.torch.tensor(numbers, dtype=self.torch.int32, device="cuda")

    @property
    def parts(self):
        """Where keys lie, and the numbers beside them; the same of values."""
        layout = self.layout
        return (layout.keys, layout.key_scales), (layout.values, layout.value_scales)

    @property
    def code_bytes(self):
        return SIZE * self.format.bits // 8

    @property
    def mark(self):
        """A large code of the format."""
        return {Format.INT8: 127, Format.UINT4: 15}.get(self.format, 32.0)

    def middle(self, codes):
        """Integer codes moved to the middle half of their range, so that marks stand out."""
        return {Format.INT8: codes // 2, Format.UINT4: 4 + codes // 2}.get(self.format, codes)

    def places(self, request, length):
        """Spans and tokens in them of a request's first `length` tokens, in order."""
        positions = self.torch.arange(length, device="cuda")
        table = self.tables[int(self.rows[request])]
        return table[positions // SPAN_LEN].long(), positions % SPAN_LEN

    def field(self, place, size):
        """The layer's arrays of `size` bytes per token and head, as bytes [S L K size]."""
        layout = self.layout
        return self.cache.as_strided(
            (len(self.cache) // layout.span_stride, SPAN_LEN, KV_HEADS, size),
            (layout.span_stride, place.token_stride, place.head_stride, 1),
            LAYER * layout.layer_stride + place.offset,
        )

    def drawn(self, count):
        """Random codes of `count` tokens, and the numbers beside them."""
        torch, shape = self.torch, (count, KV_HEADS, SIZE)
        uniform = torch.rand(count, KV_HEADS, 2, device="cuda", generator=self.draw)
        scale = 0.5 + uniform[..., 1:]
        if self.format is Format.FP8:
            return self.random(*shape).float(), scale
        if self.format is Format.BFLOAT16:
            return self.random(*shape), None
        low, high, unit = (0, 16, 0.2) if self.format is Format.UINT4 else (-128, 128, 0.0135)
        codes = torch.randint(low, high, shape, device="cuda", generator=self.draw)
        zero = torch.round((low + high) / 2 + (uniform[..., :1] - 0.5) * (high - low) / 4)
        return codes, torch.cat([zero, unit * scale], -1)

    def packed(self, codes):
        """The bytes of codes[N K D]."""
        torch = self.torch
        match self.format:
            case Format.FP8:
                return codes.to(torch.float8_e4m3fn).view(torch.uint8)
            case Format.INT8:
                return codes.to(torch.int8).view(torch.uint8)
            case Format.UINT4:
                return (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8)
        return codes.view(torch.uint8)

    def kept(self, place, numbers, where):
        """What the cache holds of the tokens `where`, as [N K D] in float64."""
        torch = self.torch
        codes = self.field(place, self.code_bytes)[where]
        if numbers is None:
            return codes.view(torch.bfloat16).double()
        beside = self.field(numbers, 4 * self.format.num_scales)[where]
        beside = beside.view(torch.float32).double()
        match self.format:
            case Format.FP8:
                return codes.view(torch.float8_e4m3fn).double() * beside
            case Format.INT8:
                codes = codes.view(torch.int8)
            case Format.UINT4:
                codes = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
        return (codes.double() - beside[..., :1]) * beside[..., 1:]

    def check(self, out, query, request, length):
        """Compare out[T H E] with what the last T tokens of a request see, row by row."""
        torch, rows = self.torch, len(query)
        if length == 0:
            assert (out == 0).all()
            return
        where = self.places(request, length)
        keys, values = (self.kept(*part, where) for part in self.parts)
        assert torch.isfinite(keys).all()
        assert torch.isfinite(values).all()
        limit = CLOSE if length == LONGEST else tolerance(str(out.dtype).removeprefix("torch."))
        for first in range(0, rows, AT_ONCE):
            own = slice(first, first + AT_ONCE)
            heads = query[own].double().view(-1, KV_HEADS, HEADS // KV_HEADS, SIZE)
            scores = self.scale * torch.einsum("tkgd,nkd->tkgn", heads, keys)
            last = length - rows + torch.arange(rows, device="cuda")[own, None, None, None]
            hidden = torch.arange(length, device="cuda") > last
            weights = scores.masked_fill_(hidden, -math.inf).softmax(-1)
            expected = torch.einsum("tkgn,nke->tkge", weights, values).flatten(1, 2)
            size = expected.square().mean(-1, keepdim=True).sqrt().maximum(expected.abs())
            error = ((out[own].double() - expected).abs() / size).nan_to_num(math.inf).max()
            assert float(error) <= limit, (length, first, float(error), limit)


def marked(positions):
    """The elements that tokens are marked in."""
    groups = positions // 16
    return (37 * groups + groups // SIZE) % SIZE
