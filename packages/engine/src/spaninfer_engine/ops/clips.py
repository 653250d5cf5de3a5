"""Indices of an audio tower's convolutions: frames of a spectrogram, and rows of its output.

Two convolutions of three frames stand before the layers, the second one taking every other frame. A
clip of n frames with sound makes L = (n - 1) // 2 + 1 rows, of which `pool` neighbours at a time
become a token; rows behind the last whole token are seen by others, and make none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.ops.step import Ints
from spaninfer_engine.spec.tower_nodes import TAPS

Floats = NDArray[np.float32]


def num_rows(num_frames: int) -> int:
    """Return how many rows the convolutions make of frames with sound."""
    return (num_frames - 1) // 2 + 1


def num_tokens(rows: int, pool: int) -> int:
    """Return how many tokens that many rows make."""
    return rows // pool


def unfolded(mel: Floats, count: int) -> Floats:
    """[count, 3 * mels]: each of the first frames of mel[mels F] between its neighbours.

    In front of the first and behind the last frame is silence of zeros.
    """
    padded = np.pad(mel, ((0, 0), (1, 1)))
    taps = [padded[:, tap : tap + count] for tap in range(TAPS)]
    return np.ascontiguousarray(np.concatenate(taps).T)


def strided(counts: Sequence[int], rows: Sequence[int], pool: int) -> tuple[Ints, Ints]:
    """Return which frames the second convolution sees for each row, [3 T], and rows' places [T].

    counts[N] are the frames of each clip that the first convolution computed, one clip below the
    other; one more row is zeros. A clip has as many rows as `rows` says, rounded up to whole
    tokens; those beyond see zeros.
    """
    silence, frames, places, start = sum(counts), [], [], 0
    for count, real in zip(counts, rows, strict=True):
        row = np.arange(-(-real // pool) * pool)
        seen = 2 * row[:, None] + np.arange(TAPS) - 1
        inside = (seen >= 0) & (seen < count) & (row < real)[:, None]
        frames.append(np.where(inside, seen + start, silence).reshape(-1))
        places.append(np.minimum(row, real - 1))
        start += count
    return np.concatenate(frames).astype(np.int32), np.concatenate(places).astype(np.int32)


def cut(rows: Sequence[int], pool: int) -> Ints:
    """Return how many rows attend to each other: those of a clip, then each that is none."""
    lens = []
    for real in rows:
        lens += [real, *[1] * (-real % pool)]
    return np.array(lens, np.int32)
