"""Pictures for vision-language models: from bytes to pixels, without a framework."""

from spaninfer_multimodal.decode import FORMATS, decode_image
from spaninfer_multimodal.errors import MediaError, TooLarge, Unreadable
from spaninfer_multimodal.media import Image, ImageLimits

__all__ = [
    "FORMATS",
    "Image",
    "ImageLimits",
    "MediaError",
    "TooLarge",
    "Unreadable",
    "decode_image",
]
