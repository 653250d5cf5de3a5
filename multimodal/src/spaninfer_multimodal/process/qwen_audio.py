"""Qwen-Audio (2023): Whisper's log-mel features of a clip, without the silence behind it.

Source: audio.py and tokenization_qwen.py of Qwen-Audio-Chat. There, the encoder sees a clip up to
the end of the longest one beside it; here each ends by itself, whatever it is sent with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from spaninfer_multimodal.errors import TooLarge, Unreadable
from spaninfer_multimodal.media import SAMPLE_RATE, Audio
from spaninfer_multimodal.process.config import ProcessorConfig, expect, integer
from spaninfer_multimodal.process.features import Mel, digest_with
from spaninfer_multimodal.process.whisper import log_mel

N_FFT: Final = 400
HOP: Final = 160
MARKS: Final = 2
"""Rows that the model puts around those of a clip."""


@dataclass(frozen=True, slots=True)
class QwenAudioProcessor:
    """Prepares clips of at most `max_rows` rows of two frames each."""

    num_mels: int = 80
    max_rows: int = 1500

    def audio(self, audio: Audio) -> Mel:
        """Return the features of a clip; raises TooLarge beyond the model's positions, and
        Unreadable for one so short that it has no token.
        """
        num_samples, most = len(audio.samples), 2 * self.max_rows * HOP
        if num_samples > most:
            raise TooLarge(
                f"the audio lasts {audio.duration_s:.1f} s; this model hears "
                f"{most / SAMPLE_RATE:g} s at once: send it in parts"
            )
        num_frames = num_samples // HOP
        rows = (num_frames - 1) // 2 + 1
        if rows < 2:
            raise Unreadable(
                f"the audio lasts {audio.duration_s:.3f} s; this model hears nothing in less than "
                f"{3 * HOP / SAMPLE_RATE:g} s: send a longer one"
            )
        padded = np.zeros(most, np.float32)
        padded[:num_samples] = audio.samples
        features = log_mel(padded, self.num_mels, N_FFT, HOP)[:, : 2 * rows]
        digest = digest_with(self, audio.digest)
        return Mel(np.ascontiguousarray(features), num_frames, rows // 2 + MARKS, digest)


def first_qwen_audio_of(config: ProcessorConfig) -> QwenAudioProcessor:
    """Return the processor of a Qwen-Audio folder."""
    audio = config.audio
    expect(audio, "avg_pool", True)
    expect(audio, "add_audio_bos_eos_token", True)
    return QwenAudioProcessor(integer(audio, "n_mels", 80), integer(audio, "n_ctx", 1500))
