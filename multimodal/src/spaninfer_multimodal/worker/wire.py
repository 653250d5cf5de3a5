"""Messages between the pool and its decoder processes: a JSON header, then bytes.

The answer of a process that decodes hostile data is itself hostile: it is JSON, never pickle, and
is checked against the possible results of the job.
"""

from __future__ import annotations

import json
import math
import struct
from typing import IO, Any

import numpy as np

from spaninfer_multimodal import errors
from spaninfer_multimodal.errors import MediaError
from spaninfer_multimodal.media import Audio, Image, Video
from spaninfer_multimodal.worker.jobs import AudioJob, ImageJob, Job, Media

_SIZES = struct.Struct("<IQ")
_MAX_HEADER_BYTES = 2**20


class BadAnswer(Exception):
    """The process ended, or wrote an invalid answer."""


def write_message(pipe: IO[bytes], header: dict[str, Any], body: bytes | memoryview) -> None:
    """Write one message and flush it."""
    text = json.dumps(header).encode()
    pipe.write(_SIZES.pack(len(text), len(body)))
    pipe.write(text)
    pipe.write(body)
    pipe.flush()


def read_message(pipe: IO[bytes], max_bytes: int) -> tuple[dict[str, Any], bytearray]:
    """Read one message with a body of at most `max_bytes`; raises BadAnswer."""
    header_bytes, body_bytes = _SIZES.unpack(_read_exactly(pipe, _SIZES.size))
    if header_bytes > _MAX_HEADER_BYTES or body_bytes > max_bytes:
        raise BadAnswer("a message of impossible size")
    try:
        header = json.loads(_read_exactly(pipe, header_bytes))
    except ValueError as error:
        raise BadAnswer("a header that is no JSON") from error
    return header, _read_exactly(pipe, body_bytes)


def _read_exactly(pipe: IO[bytes], num_bytes: int) -> bytearray:
    """Read `num_bytes` or raise BadAnswer."""
    data = bytearray(num_bytes)
    view = memoryview(data)
    while view:
        got = pipe.readinto(view)  # type: ignore[attr-defined]  # of every buffered pipe
        if not got:
            raise BadAnswer("the pipe was closed")
        view = view[got:]
    return data


def write_answer(pipe: IO[bytes], answer: Media | MediaError) -> None:
    """Write the result of a job."""
    if isinstance(answer, MediaError):
        write_message(pipe, {"error": type(answer).__name__, "message": str(answer)}, b"")
        return
    if isinstance(answer, Video):
        array: Any = answer.frames
        facts = {
            "indices": answer.indices,
            "fps": answer.fps,
            "num_source_frames": answer.num_source_frames,
        }
    else:
        array, facts = (answer.pixels if isinstance(answer, Image) else answer.samples), {}
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    write_message(pipe, {"shape": array.shape, **facts}, flat.data)


def max_answer_bytes(job: Job) -> int:
    """Return the bytes of the largest result that the limits of `job` allow."""
    if isinstance(job, ImageJob):
        return 3 * job.limits.max_pixels
    if isinstance(job, AudioJob):
        return 4 * math.ceil(job.limits.max_duration_s * 16_000)
    return 3 * job.limits.max_total_pixels


def read_answer(pipe: IO[bytes], job: Job) -> Media | MediaError:
    """Read the result of `job`; raises BadAnswer for an impossible one."""
    header, body = read_message(pipe, max_answer_bytes(job))
    try:
        if "error" in header:
            return _error_of(header)
        return _media_of(header, body, job)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise BadAnswer("an answer that fits no job") from error


def _error_of(header: dict[str, Any]) -> MediaError:
    """Return the error that a process reported."""
    kind = getattr(errors, str(header["error"]))
    if not (isinstance(kind, type) and issubclass(kind, MediaError)):
        raise ValueError(kind)
    return kind(str(header["message"]))


def _media_of(header: dict[str, Any], body: bytearray, job: Job) -> Media:
    """Return the media that a process decoded."""
    shape = tuple(int(size) for size in header["shape"])
    if isinstance(job, AudioJob):
        (_,) = shape
        return Audio(np.frombuffer(body, np.float32).reshape(shape))
    pixels = np.frombuffer(body, np.uint8).reshape(shape)
    if isinstance(job, ImageJob):
        _, _, _ = pixels.reshape(shape[0], shape[1], 3).shape
        return Image(pixels)
    indices = tuple(int(index) for index in header["indices"])
    frames = pixels.reshape(len(indices), shape[1], shape[2], 3)
    fps = float(header["fps"])
    if not 0 < fps < math.inf:
        raise ValueError(fps)
    return Video(frames, indices, fps, int(header["num_source_frames"]))
