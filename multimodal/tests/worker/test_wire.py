"""Replies of a compromised decoder process: parsed as data, and checked."""

import json
import struct
from io import BytesIO

import numpy as np
import pytest
from spaninfer_multimodal import (
    Audio,
    AudioJob,
    Busy,
    FrameSampling,
    Image,
    ImageJob,
    ImageLimits,
    Spacing,
    TooLarge,
    Video,
    VideoJob,
    VideoLimits,
)
from spaninfer_multimodal.worker.jobs import from_json, to_json
from spaninfer_multimodal.worker.wire import BadAnswer, read_answer, write_answer


def message(header, body=b""):
    """One message as a process writes it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<IQ", len(text), len(body)) + text + body


@pytest.mark.parametrize(
    ("media", "job"),
    [
        (Image(np.arange(24, dtype=np.uint8).reshape(2, 4, 3)), ImageJob()),
        (Video(np.zeros((2, 4, 5, 3), np.uint8), (0, 7), 29.97, 8), VideoJob()),
        (Audio(np.linspace(-1, 1, 50, dtype=np.float32)), AudioJob()),
    ],
    ids=["image", "video", "audio"],
)
def test_answers_are_read_as_they_were_written(media, job):
    pipe = BytesIO()
    write_answer(pipe, media)
    pipe.seek(0)

    read = read_answer(pipe, job)

    assert type(read) is type(media)
    assert read.digest == media.digest


def test_errors_are_read_as_they_were_written():
    pipe = BytesIO()
    write_answer(pipe, TooLarge("by far"))
    pipe.seek(0)

    error = read_answer(pipe, ImageJob())

    assert (type(error), str(error)) == (TooLarge, "by far")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        message({"shape": [1, 1, 3]}, b"12"),
        message({"shape": [1, 1, 3]}, b"123")[:-1],
        message({"shape": [-1, 3]}, b"123"),
        message({"shape": [3]}, b"123"),
        message({"shape": [1, 1, 4]}, b"1234"),
        message({"shape": "wide"}, b"123"),
        message({"shape": [True]}, b""),
        message({}, b"123"),
        message([1, 2]),
        message(b"\x80\x04N."),
        message({"error": "SystemExit", "message": ""}),
        message({"error": "annotations", "message": ""}),
        struct.pack("<IQ", 2**31, 0),
        struct.pack("<IQ", 2, 2**60) + b"{}",
        message({"shape": [10, 11, 3]}, bytes(330)),
    ],
)
def test_what_no_decoder_answers_is_a_bad_answer(answer):
    with pytest.raises(BadAnswer):
        read_answer(BytesIO(answer), ImageJob(ImageLimits(max_pixels=100)))


@pytest.mark.parametrize("fps", ["NaN", "Infinity", "0", "-1"])
def test_a_frame_rate_that_is_none_is_a_bad_answer(fps):
    text = f'{{"shape": [1, 1, 1, 3], "indices": [0], "fps": {fps}, "num_source_frames": 1}}'

    with pytest.raises(BadAnswer):
        read_answer(BytesIO(message(text.encode(), b"123")), VideoJob())


@pytest.mark.parametrize(
    "job",
    [
        ImageJob(ImageLimits(1, 2, 3), (4, 5, 6)),
        VideoJob(FrameSampling(1.5, None, 2, 3, 4, Spacing.ENDS), VideoLimits(5)),
        AudioJob(),
    ],
    ids=["image", "video", "audio"],
)
def test_jobs_survive_json(job):
    assert from_json(json.loads(json.dumps(to_json(job)))) == job


def test_every_error_can_cross():
    pipe = BytesIO()
    write_answer(pipe, Busy("later"))
    pipe.seek(0)

    assert isinstance(read_answer(pipe, ImageJob()), Busy)
