"""Warm-up steps at start: the largest possible step, to measure its memory, and small ones that
trigger the remaining kernels; and the largest batch of a tower.
"""

from __future__ import annotations

import numpy as np
from spaninfer_kernels_cuda import gemm

from spaninfer_engine.backends.cuda.attention.latent_keys import CHUNK_TOKENS
from spaninfer_engine.backends.cuda.graphs.memory import Sizes
from spaninfer_engine.backends.cuda.graphs.shapes import PROMPTS, GraphShape
from spaninfer_engine.backends.cuda.sampling.sampler import LOGITS_AT_ONCE
from spaninfer_engine.ops.clips import num_rows, num_tokens
from spaninfer_engine.request.media import Levels, TowerInput
from spaninfer_engine.spec.tower_nodes import AudioTower, PatchTower, Tower, num_extra
from spaninfer_engine.step.batch import Batch

SMALLER = (GraphShape(1), GraphShape(0, PROMPTS[0], gemm.MAX_ROWS + 64))
"""A decode alone; and a prompt too long for GEMMs of few rows, one token of which gets logits: of
the others, its last layer computes keys and values alone."""

LONGER = 512
"""Tokens of a prompt that latent attention reads by keys and values."""

_FRAME_SIDE = 37  # tokens: a picture of 1036 pixels squared


def largest_batch(sizes: Sizes, *, with_cached: bool = True) -> Batch:
    """Return a batch with every token and every slice that `sizes` allow.

    As few slices as can be are prompts, which share all tokens that are not decodes, behind as many
    that are cached if there may be that many, and none unless `with_cached`; the last one gets as
    many logits as a step may have of prompts, and the host gets as many as are sent at a time.
    Decodes, in table row -1, pad; the prompts are those of row 0, whatever it holds.
    """
    slices = min(sizes.requests, sizes.rows)
    prompts = min(slices, -(-sizes.rows // sizes.max_len))
    decodes = slices - prompts
    length = min(sizes.max_len, (sizes.rows - decodes) // prompts)
    is_prompt = np.arange(slices, dtype=np.int32) >= decodes
    cached = min(max(length, CHUNK_TOKENS), sizes.max_len - length) if with_cached else 0
    starts = np.where(is_prompt, cached, 0).astype(np.int32)
    stops = np.where(is_prompt, cached + length, 0).astype(np.int32)
    lengths = np.where(is_prompt, length, 1)
    logits = np.ones(slices, np.int32)
    logits[-1] = min(length, sizes.prompt_logits)
    nowhere = np.zeros(slices, np.bool_)
    return Batch(
        seq_ids=tuple(range(slices)),
        table_rows=np.where(is_prompt, 0, -1).astype(np.int32),
        starts=starts,
        stops=stops,
        rope_seq_lens=stops,
        query_start_loc=np.cumsum([0, *lengths], dtype=np.int32),
        logit_start_loc=np.cumsum([0, *logits], dtype=np.int32),
        samples=nowhere,
        samples_on_device=nowhere,
        masked=nowhere,
        num_decodes=decodes,
        host_logits=np.arange(min(LOGITS_AT_ONCE, logits.sum()), dtype=np.int32),
        num_samples=0,
        num_device_samples=0,
        num_masked=0,
    )


def largest_input(tower: Tower, max_rows: int) -> TowerInput:
    """Return zeros for a tower to see or hear, that make one batch of nearly `max_rows`."""
    match tower:
        case PatchTower(tile=int(side)):
            count = max(1, max_rows // (side**2 + tower.num_beside))
            pixels = side * tower.patch
            tiles = np.zeros((count, tower.channels, pixels, pixels), np.float32)
            return TowerInput("image", tiles, count * tower.rows_of(side**2), bytes(32))
        case PatchTower(merge=merge, numbers=numbers, channels=channels, temporal=temporal):
            side = _FRAME_SIDE * merge
            frames = max(1, max_rows // side**2)
            grid = (frames, side, side)
            tokens = frames * _FRAME_SIDE**2
            levels = Levels(np.zeros((channels, 256), np.float32), temporal)
            patches = np.zeros((frames * side**2, numbers // temporal), np.uint8)
            return TowerInput("image", patches, tokens, bytes(32), grid, levels=levels)
        case AudioTower(mels=mels, max_rows=rows, pool=pool):
            spectrogram = np.zeros((mels, 2 * rows), np.float32)
            tokens = num_tokens(num_rows(2 * rows), pool) + num_extra(tower)
            return TowerInput("audio", spectrogram, tokens, bytes(32))
