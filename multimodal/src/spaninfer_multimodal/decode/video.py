"""Bytes of a video -> sampled frames, upright, red green blue.

The packets are read twice: first their times, without decoding, then the frames that sampling
chose, beginning at the nearest key frame. Headers are not believed: duration and number of frames
are those of the packets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from av import VideoFrame
from av.container import InputContainer
from av.stream import Disposition
from av.video.stream import VideoStream
from numpy.typing import NDArray

from spaninfer_multimodal.decode.animation import decode_animation
from spaninfer_multimodal.decode.container import check_codec, open_container
from spaninfer_multimodal.errors import Unreadable
from spaninfer_multimodal.limits import (
    VideoLimits,
    check_bytes,
    check_frames,
    check_size,
    check_source,
)
from spaninfer_multimodal.media import Video
from spaninfer_multimodal.sampling import FrameSampling, Timeline, sample_frames, timeline_of
from spaninfer_multimodal.sniff import Format, Kind, sniff

THREADS: Final = 2
"""Threads of one decoder: several videos at a time share the machine through the pool."""


def decode_video(
    data: bytes, sampling: FrameSampling | None = None, limits: VideoLimits | None = None
) -> Video:
    """Return frames of the first video stream in `data`, chosen by `sampling`, rotated upright.

    Animated GIF, WebP, PNG and AVIF images are videos too. Raises TooLarge beyond the limits,
    Unreadable for anything that does not decode to its end.
    """
    sampling, limits = sampling or FrameSampling(), limits or VideoLimits()
    check_bytes("video", len(data), limits.max_bytes)
    format = sniff(data, Kind.VIDEO)
    if Kind.IMAGE in format.kinds:
        return decode_animation(data, format, sampling, limits)
    index = _read_index(data, format, limits)
    timeline = index.timeline
    indices = sample_frames(sampling, timeline.num_frames, timeline.fps)
    check_frames(len(indices), index.size, limits)
    wanted = [timeline.shown_at(number) for number in indices]
    frames = _read_frames(data, format, index, wanted, limits)
    return Video(frames, indices, timeline.fps, timeline.num_frames)


@dataclass(frozen=True, slots=True)
class _Index:
    """The index of a stream's frames. `pts` ascends, in the stream's own ticks."""

    size: tuple[int, int]
    pts: tuple[int, ...]
    key_pts: tuple[int, ...]
    timeline: Timeline

    def key_before(self, pts: int) -> int | None:
        """Return the last key frame at or before `pts`."""
        place = bisect_right(self.key_pts, pts)
        return self.key_pts[place - 1] if place else None


def _read_index(data: bytes, format: Format, limits: VideoLimits) -> _Index:
    """Read the times of all packets, without decoding any."""
    pts, keys = [], []
    with open_container(data, format, Kind.VIDEO) as container:
        stream = _stream_of(container)
        tick_s = float(stream.time_base or 0)
        size = stream.codec_context.width, stream.codec_context.height
        check_size("video", size, limits)
        for packet in container.demux(stream):
            time = packet.pts if packet.pts is not None else packet.dts
            if time is None or packet.is_discard or not packet.size:
                continue
            pts.append(time)
            if packet.is_keyframe:
                keys.append(time)
            check_source(len(pts), (time - pts[0]) * tick_s, limits)
        declared = float(stream.average_rate) if stream.average_rate else None
    ordered = tuple(sorted(set(pts)))
    timeline = timeline_of([time * tick_s for time in ordered], declared)
    return _Index(size, ordered, tuple(sorted(keys)), timeline)


def _stream_of(container: InputContainer) -> VideoStream:
    """Return the first video stream that is no cover picture of a song."""
    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:
            check_codec(stream, Kind.VIDEO)
            return stream
    raise Unreadable("the file has no video stream")


def _read_frames(
    data: bytes, format: Format, index: _Index, wanted: list[int], limits: VideoLimits
) -> NDArray[np.uint8]:
    """Decode the wanted frames, which ascend and may repeat: frames[len(wanted) height width 3]."""
    frames: NDArray[np.uint8] | None = None
    last_pts, place = None, 0
    for frame in _decode(data, format, index, wanted):
        check_size("video", (frame.width, frame.height), limits)
        pts = frame.pts if frame.pts is not None else index.pts[0] - 1
        while place < len(wanted) and pts >= index.pts[wanted[place]]:
            if frames is None or pts != last_pts:
                pixels = _upright(frame, index.size)
            if frames is None:
                frames = np.empty((len(wanted), *pixels.shape), np.uint8)
            frames[place], last_pts = pixels, pts
            place += 1
    if frames is None or place < len(wanted):
        raise Unreadable(
            f"the {format.name} video is cut off: it promises {len(index.pts)} frames, and "
            f"number {wanted[place]} does not decode"
        )
    return frames


def _decode(data: bytes, format: Format, index: _Index, wanted: list[int]) -> Iterator[VideoFrame]:
    """Yield frames in the order they are shown, skipping to key frames between wanted ones."""
    with open_container(data, format, Kind.VIDEO) as container:
        stream = _stream_of(container)
        stream.codec_context.thread_count = THREADS
        stream.thread_type = "AUTO"
        frames, position = container.decode(stream), index.pts[0] - 1
        for target in sorted({index.pts[number] for number in wanted}):
            if target <= position:
                continue
            key = index.key_before(target)
            if key is not None and key > position:
                container.seek(key, stream=stream)
                frames = container.decode(stream)
            for frame in frames:
                yield frame
                position = frame.pts if frame.pts is not None else position
                if position >= target:
                    break


def _upright(frame: VideoFrame, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return a frame as pixels[height width 3], rotated by the display matrix."""
    width, height = size
    pixels = frame.to_ndarray(format="rgb24", width=width, height=height)
    return np.rot90(pixels, round(frame.rotation / 90) % 4).astype(np.uint8, copy=False)
