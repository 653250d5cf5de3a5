"""Media for vision and audio language models: from a URL to a model's input, framework-free."""

from spaninfer_multimodal.decode import decode_audio, decode_image, decode_video
from spaninfer_multimodal.errors import (
    Busy,
    ConfigError,
    Forbidden,
    MediaError,
    TooLarge,
    TooSlow,
    Unreachable,
    Unreadable,
)
from spaninfer_multimodal.limits import AudioLimits, ImageLimits, VideoLimits
from spaninfer_multimodal.media import Audio, Image, Video
from spaninfer_multimodal.positions import (
    MediaRun,
    Positions,
    TextRun,
    Windows,
    attention_windows,
    mrope_positions,
    patch_positions,
)
from spaninfer_multimodal.process import (
    AnyResProcessor,
    FixedProcessor,
    Mel,
    Patches,
    PatchSettings,
    PixtralProcessor,
    Processors,
    QwenAudioProcessor,
    QwenVLProcessor,
    Tiles,
    WhisperProcessor,
    load_processors,
)
from spaninfer_multimodal.reader import MediaReader
from spaninfer_multimodal.sampling import FrameSampling, Spacing
from spaninfer_multimodal.source import FetchPolicy, SourcePolicy, fetch
from spaninfer_multimodal.worker import (
    AudioJob,
    DecodePool,
    ImageJob,
    ProcessLimits,
    VideoJob,
)

__all__ = [
    "AnyResProcessor",
    "Audio",
    "AudioJob",
    "AudioLimits",
    "Busy",
    "ConfigError",
    "DecodePool",
    "FetchPolicy",
    "FixedProcessor",
    "Forbidden",
    "FrameSampling",
    "Image",
    "ImageJob",
    "ImageLimits",
    "MediaError",
    "MediaReader",
    "MediaRun",
    "Mel",
    "PatchSettings",
    "Patches",
    "PixtralProcessor",
    "Positions",
    "ProcessLimits",
    "Processors",
    "QwenAudioProcessor",
    "QwenVLProcessor",
    "SourcePolicy",
    "Spacing",
    "TextRun",
    "Tiles",
    "TooLarge",
    "TooSlow",
    "Unreachable",
    "Unreadable",
    "Video",
    "VideoJob",
    "VideoLimits",
    "WhisperProcessor",
    "Windows",
    "attention_windows",
    "decode_audio",
    "decode_image",
    "decode_video",
    "fetch",
    "load_processors",
    "mrope_positions",
    "patch_positions",
]
