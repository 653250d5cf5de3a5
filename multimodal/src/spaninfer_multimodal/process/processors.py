"""The processors of a model, from its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

from spaninfer_multimodal.errors import ConfigError
from spaninfer_multimodal.process.anyres import AnyResProcessor, llava_next_of, llava_onevision_of
from spaninfer_multimodal.process.config import ProcessorConfig, read_config
from spaninfer_multimodal.process.fixed import (
    FixedProcessor,
    clip_of,
    first_qwen_vl_of,
    gemma3_of,
    siglip_of,
)
from spaninfer_multimodal.process.idefics3 import Idefics3Processor, idefics3_of
from spaninfer_multimodal.process.internvl import InternVLProcessor, internvl_of
from spaninfer_multimodal.process.llama4 import Llama4Processor, llama4_of
from spaninfer_multimodal.process.pixtral import PixtralProcessor, pixtral_of
from spaninfer_multimodal.process.qwen_audio import QwenAudioProcessor, first_qwen_audio_of
from spaninfer_multimodal.process.qwen_vl import QwenVLProcessor, qwen_vl_of
from spaninfer_multimodal.process.whisper import WhisperProcessor, whisper_of

AudioProcessor: TypeAlias = WhisperProcessor | QwenAudioProcessor
VisionProcessor: TypeAlias = (
    QwenVLProcessor
    | FixedProcessor
    | AnyResProcessor
    | PixtralProcessor
    | Llama4Processor
    | Idefics3Processor
    | InternVLProcessor
)

FAMILIES: Final[Mapping[str, Callable[[ProcessorConfig], VisionProcessor]]] = MappingProxyType(
    {
        "Qwen2VLImageProcessor": qwen_vl_of,
        "Qwen3VLImageProcessor": qwen_vl_of,
        "Gemma3ImageProcessor": gemma3_of,
        "LlavaNextImageProcessor": llava_next_of,
        "LlavaOnevisionImageProcessor": llava_onevision_of,
        "Llama4ImageProcessor": llama4_of,
        "GotOcr2ImageProcessor": internvl_of,
        "Idefics3ImageProcessor": idefics3_of,
        "SmolVLMImageProcessor": idefics3_of,
        "PixtralImageProcessor": pixtral_of,
        "SiglipImageProcessor": siglip_of,
        "CLIPImageProcessor": clip_of,
        "CLIPFeatureExtractor": clip_of,
        "LlavaImageProcessor": clip_of,
        "QwenVLFirst": first_qwen_vl_of,  # a name of ours: transformers has none
    }
)
"""Image processors by transformers' names, without the endings Fast and Pil."""


@dataclass(frozen=True, slots=True)
class Processors:
    """The processors of images and videos, and of audio; None where a model takes none."""

    vision: VisionProcessor | None
    audio: AudioProcessor | None


def load_processors(folder: str | Path) -> Processors:
    """Return the processors that a model folder describes; raises ConfigError."""
    config = read_config(Path(folder))
    return Processors(_vision(config), _audio(config))


def _vision(config: ProcessorConfig) -> VisionProcessor | None:
    """Return the processor of images and videos."""
    if not config.image:
        return None
    name = config.image.get("image_processor_type") or config.image.get("feature_extractor_type")
    family = FAMILIES.get(str(name).removesuffix("Fast").removesuffix("Pil"))
    if family is None:
        raise ConfigError(
            f"image_processor_type is {name!r}; implemented are {', '.join(sorted(FAMILIES))}"
        )
    return family(config)


def _audio(config: ProcessorConfig) -> AudioProcessor | None:
    """Return the processor of audio."""
    if not config.audio:
        return None
    name = config.audio.get("feature_extractor_type")
    if name == "QwenAudioFirst":
        return first_qwen_audio_of(config)
    if name != "WhisperFeatureExtractor":
        raise ConfigError(
            f"feature_extractor_type is {name!r}; implemented is WhisperFeatureExtractor"
        )
    return whisper_of(config)
