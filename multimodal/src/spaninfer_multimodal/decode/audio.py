"""Bytes of an audio file -> mono samples, 16 000 per second."""

from __future__ import annotations

import numpy as np
from av import AudioFrame, AudioResampler
from numpy.typing import NDArray

from spaninfer_multimodal.decode.container import check_codec, open_container
from spaninfer_multimodal.errors import TooLarge, Unreadable
from spaninfer_multimodal.limits import AudioLimits, check_bytes
from spaninfer_multimodal.media import SAMPLE_RATE, Audio
from spaninfer_multimodal.sniff import Kind, sniff


def decode_audio(data: bytes, limits: AudioLimits | None = None) -> Audio:
    """Return the first audio stream in `data`, mixed to one channel and resampled.

    Videos are read for their sound. Raises TooLarge beyond the limits, Unreadable for anything
    that does not decode to its end.
    """
    limits = limits or AudioLimits()
    check_bytes("audio", len(data), limits.max_bytes)
    format = sniff(data, Kind.AUDIO)
    collected = _Collected(limits)
    resampler = AudioResampler(format="fltp", rate=SAMPLE_RATE)  # of every channel
    with open_container(data, format, Kind.AUDIO) as container:
        if not container.streams.audio:
            raise Unreadable(f"the {format.name} file has no audio stream")
        stream = container.streams.audio[0]
        check_codec(stream, Kind.AUDIO)
        try:
            for frame in container.decode(stream):
                collected.add(resampler.resample(frame))
        except ValueError as error:
            if type(error) is ValueError:  # PyAV's error for a frame unlike the first
                raise Unreadable("the audio changes its rate or channels half-way") from error
            raise
        if collected.num_samples:
            collected.add(resampler.resample(None))
    return Audio(collected.samples())


class _Collected:
    """Samples decoded so far, never more than the limits allow."""

    def __init__(self, limits: AudioLimits) -> None:
        self.limits = limits
        self.parts: list[NDArray[np.float32]] = []
        self.num_samples = 0

    def add(self, frames: list[AudioFrame]) -> None:
        """Append resampled frames as the mean of their channels.

        FFmpeg would add the channels up with weights that sum to more than 1.
        """
        for frame in frames:
            self.parts.append(frame.to_ndarray().mean(axis=0, dtype=np.float32))
            self.num_samples += len(self.parts[-1])
        if self.num_samples > self.limits.max_duration_s * SAMPLE_RATE:
            most = f"{self.limits.max_duration_s:g}"
            raise TooLarge(f"the audio lasts longer than {most} s, which is the limit")

    def samples(self) -> NDArray[np.float32]:
        """Return everything as one array."""
        if not self.num_samples:
            raise Unreadable("the audio has no samples")
        return np.concatenate(self.parts)
