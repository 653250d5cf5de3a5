"""Frame sampling of videos: pure functions of length and frame rate."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from spaninfer_multimodal.errors import Unreadable


class Spacing(Enum):
    """The spacing of a family's samples over a video.

    FLOOR: frame floor(i * total / n) (Qwen2-VL, Qwen2.5-VL); the last samples lie before the end.
    ENDS: n frames evenly from the first to the last one, rounded (Qwen3-VL, LLaVA-OneVision).
    """

    FLOOR = "floor"
    ENDS = "ends"


@dataclass(frozen=True, slots=True)
class FrameSampling:
    """The number of sampled frames and their spacing.

    `num_frames` asks for a number, otherwise `fps` for a rate, kept within `min_frames` and
    `max_frames` and the frames there are. `multiple` is the factor that FLOOR rounds the number
    down to, the temporal patch size of the tower.
    """

    fps: float = 2.0
    num_frames: int | None = None
    min_frames: int = 4
    max_frames: int = 768
    multiple: int = 2
    spacing: Spacing = Spacing.FLOOR


def sample_frames(sampling: FrameSampling, num_frames: int, fps: float) -> tuple[int, ...]:
    """Return the numbers of the sampled frames, ascending, of a video of `num_frames` at `fps`."""
    wanted = _how_many(sampling, num_frames, fps)
    if sampling.spacing is Spacing.ENDS:
        return tuple(np.linspace(0, num_frames - 1, wanted).round().astype(int).tolist())
    # float32, as the families' own code; an index past the end, which its rounding can add, is cut
    indices = np.arange(0, num_frames, num_frames / wanted).astype(np.float32).astype(int)
    return tuple(indices[:wanted].tolist())


def _how_many(sampling: FrameSampling, num_frames: int, fps: float) -> int:
    """Return the number of samples: at least 1, at most the frames there are."""
    if sampling.num_frames is not None:
        return max(1, min(sampling.num_frames, num_frames))
    if sampling.spacing is Spacing.ENDS:
        rate = int(num_frames / fps * sampling.fps)
        return max(1, min(max(rate, sampling.min_frames), sampling.max_frames, num_frames))
    multiple = sampling.multiple
    most = math.floor(min(sampling.max_frames, num_frames) / multiple) * multiple
    wanted = min(max(num_frames / fps * sampling.fps, sampling.min_frames), most, num_frames)
    return max(1, math.floor(wanted / multiple) * multiple)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The times at which a video's frames are shown, and their average rate.

    `starts_s` ascends. `fps` makes frame n of a constant rate start at starts_s[0] + n / fps.
    """

    starts_s: tuple[float, ...]
    fps: float

    def __post_init__(self) -> None:
        if not self.starts_s:
            raise Unreadable("the video has no frames")

    @property
    def num_frames(self) -> int:
        """Frames of the video."""
        return len(self.starts_s)

    def shown_at(self, index: int) -> int:
        """Return the number of the frame on screen when frame `index` of a constant rate starts.

        Times are rounded to half a frame, because containers round them: to milliseconds in WebM.
        """
        time_s = self.starts_s[0] + (index + 0.5) / self.fps
        return max(0, bisect_right(self.starts_s, time_s) - 1)


def timeline_of(starts_s: Sequence[float], declared_fps: float | None) -> Timeline:
    """Return the timeline of frames that start at `starts_s`, in any order.

    The declared rate is believed where the frames agree with it to 1 %, since it is exact
    (30000/1001) where times are rounded; else the rate is measured.
    """
    starts = tuple(sorted(starts_s))
    span_s = starts[-1] - starts[0] if starts else 0.0
    measured = (len(starts) - 1) / span_s if span_s > 0 else None
    if declared_fps and (measured is None or abs(declared_fps / measured - 1) < 0.01):
        return Timeline(starts, declared_fps)
    return Timeline(starts, measured or 1.0)
