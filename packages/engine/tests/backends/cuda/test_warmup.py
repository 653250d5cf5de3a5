"""The largest step, which fills every limit."""

import numpy as np
import pytest

pytest.importorskip("torch")

from first_qwen import FIRST_QWEN
from media_models import HEARING, SIGHTS
from spaninfer_engine.backends.cuda.graphs.memory import Sizes
from spaninfer_engine.backends.cuda.warmup import largest_batch, largest_input
from spaninfer_engine.backends.host.tower import HostTower
from spaninfer_engine.backends.reference.ops import ReferenceOps
from spaninfer_engine.spec import find, resolve
from tile_models import TILED

LOGITS = 32


@pytest.mark.parametrize(
    ("requests", "rows", "max_len"),
    [
        (256, 8192, 32768),
        (256, 8192, 512),
        (1, 512, 4096),
        (7, 64, 10),
        (300, 300, 40),
        (2, 2, 9),
        (256, 16, 4096),  # fewer tokens than requests
        (256, 1, 4096),
    ],
)
def test_the_largest_step_takes_every_slice_and_nearly_every_token(requests, rows, max_len):
    sizes = Sizes(
        requests=requests, rows=rows, max_len=max_len, span_len=16, num_groups=1,
        prompt_logits=LOGITS,
    )  # fmt: skip

    batch = largest_batch(sizes)

    slices, prompts = batch.num_slices, batch.num_slices - batch.num_decodes
    lengths = np.diff(batch.query_start_loc)[batch.num_decodes :].tolist()
    assert slices == min(requests, rows)
    assert min(rows, requests * max_len) - prompts < batch.num_tokens <= rows or prompts == requests
    assert batch.num_logits == slices + min(lengths[-1], LOGITS) - 1
    assert min(lengths) >= 1
    assert max(lengths) <= batch.max_seq_len <= max_len
    cached = batch.starts[batch.num_decodes :].tolist()
    assert cached == [min(max(length, 4096), max_len - length) for length in lengths]
    assert (batch.stops - batch.starts)[batch.num_decodes :].tolist() == lengths
    assert not largest_batch(sizes, with_cached=False).starts.any()
    assert len(batch.per_token(batch.rope_seq_lens)) == len(batch.positions()) == batch.num_tokens
    assert not batch.samples_on_device.any()
    assert {part.dtype for part in (batch.starts, batch.stops, batch.query_start_loc)} == {
        np.dtype(np.int32)
    }


def config_of(name):
    if name in FIRST_QWEN:
        return FIRST_QWEN[name]
    return {**SIGHTS, **TILED, "qwen2_audio": HEARING}[name].family.config_json()


@pytest.mark.parametrize("name", [*SIGHTS, *TILED, "qwen2_audio", *FIRST_QWEN])
def test_the_largest_input_of_a_tower_is_one_that_it_reads(name):
    (tower,) = resolve(find(config_of(name)), config_of(name)).towers
    reader = HostTower(lambda: None, ReferenceOps("float32"), tower)._reader

    pieces = reader.pieces(largest_input(tower, 16_384))

    assert 0 < sum(piece.num_rows for piece in pieces) <= 16_384
