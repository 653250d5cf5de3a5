"""Whisper's log-mel features, as Whisper and Qwen2-Audio read them.

Source: Radford et al. 2022 (section 2.2); Slaney's auditory toolbox for the filters; checked
against transformers' WhisperFeatureExtractor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from spaninfer_multimodal.errors import ConfigError, TooLarge
from spaninfer_multimodal.media import SAMPLE_RATE, Audio
from spaninfer_multimodal.process.config import ProcessorConfig, expect, integer
from spaninfer_multimodal.process.features import Mel, digest_with

MAX_HERTZ = 8000.0


@dataclass(frozen=True, slots=True)
class WhisperProcessor:
    """Prepares clips of at most `chunk_s` seconds, padded with silence to that length.

    `pools` says that the encoder averages pairs and stops at the end of the sound (Qwen2-Audio);
    otherwise all of its positions count (Whisper).
    """

    num_mels: int = 80
    n_fft: int = 400
    hop: int = 160
    chunk_s: int = 30
    pools: bool = False

    def audio(self, audio: Audio) -> Mel:
        """Return the features of a clip; raises TooLarge beyond `chunk_s`."""
        num_samples, most = len(audio.samples), self.chunk_s * SAMPLE_RATE
        if num_samples > most:
            raise TooLarge(
                f"the audio lasts {audio.duration_s:.1f} s; this model hears {self.chunk_s} s at "
                "once: send it in parts"
            )
        padded = np.zeros(most, np.float32)
        padded[:num_samples] = audio.samples
        num_valid = -(-num_samples // self.hop)
        features = log_mel(padded, self.num_mels, self.n_fft, self.hop)
        return Mel(
            features,
            num_valid,
            pooled_tokens(num_valid) if self.pools else most // self.hop // 2,
            digest_with(self, audio.digest),
        )


def pooled_tokens(num_valid: int) -> int:
    """Return Qwen2-Audio's tokens for that many frames: a convolution and a pooling by two."""
    return max(0, ((num_valid - 1) // 2 + 1 - 2) // 2 + 1)


def log_mel(
    samples: NDArray[np.float32], num_mels: int, n_fft: int, hop: int
) -> NDArray[np.float32]:
    """Return log-mel features[num_mels, len(samples) // hop] of samples[num_samples].

    Frames are centred, with the edges mirrored, and the last one is dropped; powers are below the
    largest by 80 dB at most, and scaled to about [-1, 1].
    """
    padded = np.pad(samples, n_fft // 2, mode="reflect")
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)).astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(padded, n_fft)[::hop][:-1] * window
    power = np.abs(np.fft.rfft(frames, axis=1)).astype(np.float32) ** 2
    mels = power @ mel_filters(num_mels, n_fft).astype(np.float32)
    levels = np.log10(np.maximum(mels, 1e-10)).T
    levels = np.maximum(levels, levels.max() - 8)
    return np.ascontiguousarray((levels + 4) / 4, np.float32)


@lru_cache(maxsize=8)
def mel_filters(num_mels: int, n_fft: int) -> NDArray[np.float64]:
    """Return triangular filters[1 + n_fft / 2, num_mels] of equal area, from 0 to 8000 Hz."""
    edges = _hertz(np.linspace(_mel(0.0), _mel(MAX_HERTZ), num_mels + 2))
    bins = np.linspace(0, SAMPLE_RATE // 2, 1 + n_fft // 2)
    widths = np.diff(edges)
    slopes = edges[None] - bins[:, None]
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    filters: NDArray[np.float64] = np.maximum(0, np.minimum(rising, falling))
    filters = filters * (2 / (edges[2:] - edges[:-2]))[None]
    filters.setflags(write=False)
    return filters


def _mel(hertz: float) -> float:
    """Return Slaney's mel: linear below 1000 Hz, logarithmic above."""
    if hertz < 1000:
        return 3 * hertz / 200
    return float(15 + np.log(hertz / 1000) * (27 / np.log(6.4)))


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the frequencies of Slaney's mels."""
    above = 1000 * np.exp(np.log(6.4) / 27 * (mels - 15))
    return np.where(mels >= 15, above, 200 * mels / 3)


def whisper_of(config: ProcessorConfig) -> WhisperProcessor:
    """Return the processor of a Whisper or Qwen2-Audio folder."""
    audio = config.audio
    expect(audio, "sampling_rate", SAMPLE_RATE)
    expect(audio, "dither", 0.0, None)
    expect(audio, "padding_value", 0.0)
    n_fft, hop = integer(audio, "n_fft", 400), integer(audio, "hop_length", 160)
    if n_fft % 2:
        raise ConfigError(f"n_fft is {n_fft}; it must be even")
    return WhisperProcessor(
        integer(audio, "feature_size", 80),
        n_fft,
        hop,
        integer(audio, "chunk_length", 30),
        "Qwen2Audio" in str(config.shared.get("processor_class")),
    )
