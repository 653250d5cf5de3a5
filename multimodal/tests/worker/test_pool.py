"""Decoding in worker processes: equal results, and hostile files that cannot stall or crash the
caller.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from drawn import image_file, still, tone, video_file, wav_file
from PIL import Image as Pillow
from spaninfer_multimodal import (
    AudioJob,
    AudioLimits,
    Busy,
    DecodePool,
    FrameSampling,
    ImageJob,
    ImageLimits,
    ProcessLimits,
    Spacing,
    TooLarge,
    TooSlow,
    Unreadable,
    VideoJob,
    VideoLimits,
    decode_audio,
    decode_image,
    decode_video,
)
from spaninfer_multimodal.worker import process as process_module
from spaninfer_multimodal.worker.confine import environment
from spaninfer_multimodal.worker.process import DecoderProcess

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="sends signals of POSIX")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_DATA")


@pytest.fixture(scope="module")
def pool():
    """One process for most tests."""
    with DecodePool(1) as pool:
        yield pool


@pytest.fixture
def process():
    """A process of its own for tests that end it."""
    process = DecoderProcess(ProcessLimits())
    yield process
    process.close()


def test_an_image_is_what_it_is_in_this_process(pool):
    data = image_file(Pillow.new("RGBA", (7, 5), (200, 30, 60, 128)))

    image = pool.submit(data, ImageJob(background=(0, 255, 0))).result()

    np.testing.assert_array_equal(image.pixels, decode_image(data, background=(0, 255, 0)).pixels)
    assert not image.pixels.flags.writeable


def test_a_video_is_what_it_is_in_this_process(pool):
    data, sampling = video_file(6), FrameSampling(num_frames=3, spacing=Spacing.ENDS)

    video, here = pool.submit(data, VideoJob(sampling)).result(), decode_video(data, sampling)

    np.testing.assert_array_equal(video.frames, here.frames)
    assert (video.indices, video.fps) == (here.indices, here.fps)
    assert video.digest == here.digest


def test_a_clip_is_what_it_is_in_this_process(pool):
    data = wav_file(tone(8_000, seconds=0.2), 8_000)

    audio = pool.submit(data, AudioJob()).result()

    np.testing.assert_array_equal(audio.samples, decode_audio(data).samples)


@pytest.mark.parametrize(
    ("data", "job", "error", "message"),
    [
        (b"words", ImageJob(), Unreadable, "unknown format"),
        (image_file(still()), ImageJob(ImageLimits(max_pixels=9)), TooLarge, "512 pixels"),
        (video_file(2), VideoJob(limits=VideoLimits(max_side=9)), TooLarge, "64 x 48"),
        (image_file(still()), AudioJob(AudioLimits(max_bytes=9)), TooLarge, "at most 9"),
    ],
    ids=["words", "pixels", "side", "bytes"],
)
def test_errors_cross_the_border_as_they_are(pool, data, job, error, message):
    with pytest.raises(error, match=message):
        pool.submit(data, job).result()


@POSIX
def test_a_process_that_does_not_answer_is_killed_and_replaced():
    process = DecoderProcess(ProcessLimits(max_decode_s=10.0))
    data = image_file(still())
    process.run(data, ImageJob())
    first = process.pid
    process._limits = ProcessLimits(max_decode_s=0.2)
    os.kill(first, signal.SIGSTOP)

    with pytest.raises(TooSlow, match=r"longer than 0\.2 s"):
        process.run(data, ImageJob())

    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    process._limits = ProcessLimits()
    assert process.run(data, ImageJob()).width == 32
    assert process.pid != first
    process.close()


@POSIX
def test_a_process_that_dies_between_jobs_is_replaced(process):
    data = image_file(still())
    process.run(data, ImageJob())
    os.kill(process.pid, signal.SIGKILL)

    assert process.run(data, ImageJob()).width == 32


@POSIX
def test_data_that_ends_every_process_is_refused(process, monkeypatch):
    crashing = f"import os; os.kill(os.getpid(), {int(signal.SIGABRT)})"
    monkeypatch.setattr(process_module, "COMMAND", (sys.executable, "-c", crashing))

    with pytest.raises(Unreadable, match=r"ended the decoder process \(signal 6\)"):
        process.run(image_file(still()), ImageJob())


@LINUX
def test_memory_is_limited():
    data = image_file(Pillow.new("L", (6000, 6000)), compress_level=1)
    process = DecoderProcess(ProcessLimits(max_memory_bytes=120 * 2**20))

    with pytest.raises(TooLarge, match="125829120 bytes of memory"):
        process.run(data, ImageJob())
    assert process.run(image_file(still()), ImageJob()).width == 32
    process.close()


def test_more_than_may_wait_is_refused_and_place_is_made_again():
    data = image_file(still())
    with DecodePool(1, max_waiting=1) as pool:
        first, second = pool.submit(data, ImageJob()), pool.submit(data, ImageJob())
        with pytest.raises(Busy, match="1 media are waiting for a decoder"):
            pool.submit(data, ImageJob())
        assert first.result().width == second.result().width == 32
        third = pool.submit(data, ImageJob())
        assert third.result().width == 32


def test_processes_end_with_their_pool():
    with DecodePool(1) as pool:
        pool.submit(image_file(still()), ImageJob()).result()
        child = pool._processes.queue[0]._process

    assert child.poll() is not None
    pool.close()  # again is harmless


def test_a_decoder_process_knows_no_secrets():
    kept = environment({"API_KEY": "secret", "PATH": "/bin", "TMPDIR": "/scratch"})

    assert set(kept) == {
        "TMPDIR", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS", "MALLOC_ARENA_MAX",
    }  # fmt: skip
    assert all(Path(path).exists() for path in sys.path if path.endswith("src"))
