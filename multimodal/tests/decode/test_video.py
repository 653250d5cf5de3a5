"""Videos of every codec become the frames that were drawn, at the times they are shown."""

import struct
from io import BytesIO

import av
import numpy as np
import pytest
from drawn import HEIGHT, WIDTH, damaged, drawn_frame, image_file, numbers_of, video_file
from PIL import Image as Pillow
from spaninfer_multimodal import (
    FrameSampling,
    MediaError,
    TooLarge,
    Unreadable,
    VideoLimits,
    decode_image,
    decode_video,
)

EVERY = FrameSampling(fps=1000.0, multiple=1)
"""Sampling that keeps every frame."""

CODECS = {
    "h264": ("libx264", "mp4", {}),
    "h264 with reordered frames": ("libx264", "mp4", {"bf": "3", "b-pyramid": "normal"}),
    "h265": ("libx265", "mp4", {"x265-params": "log-level=none"}),
    "vp8": ("libvpx", "webm", {}),
    "vp9": ("libvpx-vp9", "webm", {}),
    "av1": ("libsvtav1", "mp4", {"preset": "12", "svtav1-params": "lp=1"}),
    "h264 in avi": ("libx264", "avi", {"bf": "0"}),
    "h264 in matroska": ("libx264", "matroska", {}),
}


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_gives_the_frames_that_were_drawn(codec):
    name, container, options = CODECS[codec]

    video = decode_video(video_file(10, name, container, options=options), EVERY)

    assert numbers_of(video.frames) == list(range(10))
    assert video.indices == tuple(range(10))
    assert video.fps == pytest.approx(10, rel=1e-3)
    assert (video.num_source_frames, video.height, video.width) == (10, HEIGHT, WIDTH)
    assert not video.frames.flags.writeable


@pytest.mark.parametrize("codec", ["h264", "h265", "av1"])
def test_ten_bits_are_read(codec):
    name, container, options = CODECS[codec]
    data = video_file(6, name, container, options=options, pix_fmt="yuv420p10le")

    video = decode_video(data, EVERY)

    assert numbers_of(video.frames) == list(range(6))


def test_two_frames_per_second_are_taken_unless_asked_otherwise():
    video = decode_video(video_file(12, rate=4))

    assert video.indices == (0, 2, 4, 6, 8, 10)
    assert numbers_of(video.frames) == [0, 2, 4, 6, 8, 10]
    assert video.times_s == (0, 0.5, 1, 1.5, 2, 2.5)


@pytest.mark.parametrize("gop", [3, 4, 250])
@pytest.mark.parametrize("bframes", ["0", "2"])
def test_frames_reached_from_a_key_frame_are_those_reached_from_the_start(gop, bframes):
    data = video_file(12, gop=gop, options={"bf": bframes})
    every = decode_video(data, EVERY).frames

    for number in (1, 2, 3, 5, 7, 12):
        few = decode_video(data, FrameSampling(num_frames=number, multiple=1))
        np.testing.assert_array_equal(few.frames, every[list(few.indices)])


MATRICES = {
    90: (0, 1, -1, 0),
    180: (-1, 0, 0, -1),
    270: (0, -1, 1, 0),
}
"""The first two columns of `tkhd`'s matrix (ISO/IEC 14496-12) of a camera held sideways: degrees
by which the picture is turned clockwise for display."""


@pytest.mark.parametrize("degrees", MATRICES)
def test_the_frames_are_turned_upright(degrees):
    data = bytearray(video_file(4))
    place = data.index(b"tkhd") + 44
    a, b, c, d = (value << 16 for value in MATRICES[degrees])
    data[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)

    video = decode_video(bytes(data), EVERY)

    expected = np.rot90(drawn_frame(0), -degrees // 90)
    assert video.frames.shape[1:] == expected.shape
    assert np.abs(video.frames[0].astype(int) - expected).mean() < 8


def test_at_a_variable_rate_each_sample_is_what_is_on_the_screen():
    times = [0, 100, 200, 300, 1300, 1400, 1500, 1600, 1700, 2700]  # two frames last a second
    video = decode_video(video_file(10, container="matroska", times=times), EVERY)

    assert video.fps == pytest.approx(9 / 2.7)
    shown = [max(n for n in range(10) if times[n] <= t * 1000 + 150) for t in video.times_s]
    assert numbers_of(video.frames) == shown
    assert shown.count(3) == 3  # it stands for a second


@pytest.mark.parametrize(
    ("container", "muxer"),
    [("mp4", {"movflags": "frag_keyframe+empty_moov"}), ("matroska", {"live": "1"})],
)
def test_a_header_without_duration_is_no_hindrance(container, muxer):
    data = video_file(8, container=container, muxer=muxer)

    assert numbers_of(decode_video(data, EVERY).frames) == list(range(8))


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "AVIF"])
def test_an_animated_image_is_a_video_if_asked_for_as_one(format):
    frames = [Pillow.fromarray(drawn_frame(number)) for number in range(8)]
    data = image_file(frames[0], format, save_all=True, append_images=frames[1:], duration=100)

    video = decode_video(data, EVERY)

    assert numbers_of(video.frames) == list(range(8))
    assert video.fps == pytest.approx(10)
    assert numbers_of(decode_image(data).pixels[None]) == [0]


def test_an_image_that_stands_still_is_a_video_of_one_frame():
    video = decode_video(image_file(Pillow.fromarray(drawn_frame(3))))

    assert (video.indices, numbers_of(video.frames)) == ((0,), [3])


def test_frames_shown_for_unequal_times_are_sampled_by_time():
    frames = [Pillow.fromarray(drawn_frame(number)) for number in range(4)]
    shown = [100, 100, 700, 100]
    data = image_file(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=shown)

    video = decode_video(data, EVERY)

    assert video.fps == pytest.approx(4)
    assert numbers_of(video.frames) == [1, 2, 2, 2]  # at 0.125, 0.375, 0.625 and 0.875 s


def test_equal_frames_at_other_times_have_another_digest():
    frames = {decode_video(video_file(4, rate=rate), EVERY).digest for rate in (5, 10, 10)}

    assert len(frames) == 2


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (VideoLimits(max_bytes=100), "bytes; at most 100"),
        (VideoLimits(max_side=63), "64 x 48; no side may exceed 63"),
        (VideoLimits(max_pixels=3000), "3072 pixels; at most 3000"),
        (VideoLimits(max_frames=11), "12 frames would be sampled; at most 11 .* lower fps"),
        (VideoLimits(max_total_pixels=36_000), "12 frames of 64 x 48 are 36864 pixels"),
        (VideoLimits(max_source_frames=11), "more than 11 frames"),
        (VideoLimits(max_duration_s=1.0), "lasts 1.1 s; at most 1 s"),
    ],
)
def test_what_is_too_large_is_refused(limits, message):
    with pytest.raises(TooLarge, match=message):
        decode_video(video_file(12), EVERY, limits)


def test_an_animation_of_too_many_frames_is_refused():
    frames = [Pillow.fromarray(drawn_frame(number)) for number in range(8)]
    data = image_file(frames[0], "GIF", save_all=True, append_images=frames[1:])

    with pytest.raises(TooLarge, match="more than 7 frames"):
        decode_video(data, EVERY, VideoLimits(max_source_frames=7))


def test_a_video_cut_short_is_refused_with_its_cause(tmp_path):
    muxer = {"movflags": "faststart"}  # the index comes first, and promises what follows
    whole = video_file(12, muxer=muxer, path=tmp_path / "whole.mp4")

    with pytest.raises(Unreadable, match=r"MP4 video is (damaged|cut off)"):
        decode_video(whole[: whole.index(b"mdat") + 600], EVERY)


def test_sound_without_pictures_is_no_video():
    data = BytesIO()
    with av.open(data, "w", format="mp4") as output:
        stream = output.add_stream("aac", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 16_000
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))

    with pytest.raises(Unreadable, match="no video stream"):
        decode_video(data.getvalue())


def test_a_codec_that_is_not_in_the_list_is_refused_by_name():
    with pytest.raises(Unreadable, match="coded as mpeg4, which is not decoded; decoded are av1"):
        decode_video(video_file(3, "mpeg4", "mp4"))


@pytest.mark.parametrize("container", ["mp4", "matroska", "avi"])
def test_damaged_data_never_raises_anything_but_our_errors(container):
    refused = 0

    for data in damaged(video_file(4, container=container), 60):
        try:
            decode_video(data, EVERY, VideoLimits(max_total_pixels=10**7))
        except MediaError:
            refused += 1

    assert refused > 10


REAL = [
    "av1_video.mkv", "bt709_full_range.mp4", "crystal.webm", "h264_10bits.mp4", "h265_video.mp4",
    "nasa_13013.mp4", "rabbit320.mp4", "unordered.mov", "video_0.mov", "video_180.mov",
    "video_90.mov",
]  # fmt: skip


@pytest.mark.model
@pytest.mark.parametrize("name", REAL)
def test_real_videos_give_the_frames_of_a_decoder_that_reads_all(videos, name):
    sampling = FrameSampling(num_frames=5)
    path = videos / name

    video = decode_video(path.read_bytes(), sampling)

    with av.open(str(path)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number in video.indices:
                place = video.indices.index(number)
                pixels = np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))
                np.testing.assert_array_equal(video.frames[place], pixels)
    assert video.num_source_frames == number + 1


@pytest.mark.model
def test_a_real_damaged_video_is_refused(videos):
    with pytest.raises(Unreadable, match=r"the MP4 video is damaged: Invalid data"):
        decode_video((videos / "corrupted.mp4").read_bytes())
