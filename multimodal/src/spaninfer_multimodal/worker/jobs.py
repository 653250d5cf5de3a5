"""Jobs for a decoder process: frozen, with nothing but numbers and names."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from spaninfer_multimodal.decode import decode_audio, decode_image, decode_video
from spaninfer_multimodal.decode.image import WHITE, Colour
from spaninfer_multimodal.limits import AudioLimits, ImageLimits, VideoLimits
from spaninfer_multimodal.media import Audio, Image, Video
from spaninfer_multimodal.sampling import FrameSampling, Spacing

Media: TypeAlias = Image | Video | Audio


@dataclass(frozen=True, slots=True)
class ImageJob:
    """Decode an image."""

    limits: ImageLimits = field(default_factory=ImageLimits)
    background: Colour = WHITE

    def run(self, data: bytes) -> Image:
        """Decode `data`; raises MediaError."""
        return decode_image(data, self.limits, background=self.background)


@dataclass(frozen=True, slots=True)
class VideoJob:
    """Decode sampled frames of a video."""

    sampling: FrameSampling = field(default_factory=FrameSampling)
    limits: VideoLimits = field(default_factory=VideoLimits)

    def run(self, data: bytes) -> Video:
        """Decode `data`; raises MediaError."""
        return decode_video(data, self.sampling, self.limits)


@dataclass(frozen=True, slots=True)
class AudioJob:
    """Decode an audio clip."""

    limits: AudioLimits = field(default_factory=AudioLimits)

    def run(self, data: bytes) -> Audio:
        """Decode `data`; raises MediaError."""
        return decode_audio(data, self.limits)


Job: TypeAlias = ImageJob | VideoJob | AudioJob


def to_json(job: Job) -> dict[str, Any]:
    """Return a job as JSON's types."""
    fields = asdict(job)
    if isinstance(job, VideoJob):
        fields["sampling"]["spacing"] = job.sampling.spacing.value
    return {"kind": type(job).__name__, **fields}


def from_json(fields: dict[str, Any]) -> Job:
    """Return the job that `to_json` wrote."""
    match fields["kind"]:
        case "ImageJob":
            red, green, blue = fields["background"]
            return ImageJob(ImageLimits(**fields["limits"]), (red, green, blue))
        case "VideoJob":
            sampling = {**fields["sampling"], "spacing": Spacing(fields["sampling"]["spacing"])}
            return VideoJob(FrameSampling(**sampling), VideoLimits(**fields["limits"]))
        case _:
            return AudioJob(AudioLimits(**fields["limits"]))
