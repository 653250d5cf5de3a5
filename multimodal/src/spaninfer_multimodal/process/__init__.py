"""Preprocessing: media to inputs of a tower, by the rules of each family; pure numpy."""

from spaninfer_multimodal.process.anyres import AnyResProcessor
from spaninfer_multimodal.process.features import Mel, Patches, Tiles
from spaninfer_multimodal.process.fixed import FixedProcessor
from spaninfer_multimodal.process.idefics3 import Idefics3Processor
from spaninfer_multimodal.process.internvl import InternVLProcessor
from spaninfer_multimodal.process.llama4 import Llama4Processor
from spaninfer_multimodal.process.pixtral import PixtralProcessor
from spaninfer_multimodal.process.processors import Processors, load_processors
from spaninfer_multimodal.process.qwen_audio import QwenAudioProcessor
from spaninfer_multimodal.process.qwen_vl import PatchSettings, QwenVLProcessor
from spaninfer_multimodal.process.whisper import WhisperProcessor

__all__ = [
    "AnyResProcessor",
    "FixedProcessor",
    "Idefics3Processor",
    "InternVLProcessor",
    "Llama4Processor",
    "Mel",
    "PatchSettings",
    "Patches",
    "PixtralProcessor",
    "Processors",
    "QwenAudioProcessor",
    "QwenVLProcessor",
    "Tiles",
    "WhisperProcessor",
    "load_processors",
]
