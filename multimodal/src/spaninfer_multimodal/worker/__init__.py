"""Decoding in processes that can be killed: bounded time, bounded memory, no shared fate."""

from spaninfer_multimodal.worker.jobs import AudioJob, ImageJob, VideoJob
from spaninfer_multimodal.worker.pool import DecodePool
from spaninfer_multimodal.worker.process import ProcessLimits

__all__ = ["AudioJob", "DecodePool", "ImageJob", "ProcessLimits", "VideoJob"]
