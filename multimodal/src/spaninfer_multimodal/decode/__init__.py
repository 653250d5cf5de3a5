"""Bytes -> arrays, in this process; DecodePool does the same in processes that can be killed."""

from spaninfer_multimodal.decode.audio import decode_audio
from spaninfer_multimodal.decode.image import decode_image
from spaninfer_multimodal.decode.video import decode_video

__all__ = ["decode_audio", "decode_image", "decode_video"]
