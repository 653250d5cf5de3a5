"""The media reader: URLs of every kind to media, without blocking the event loop."""

import asyncio
import base64
import ipaddress

import numpy as np
import pytest
from drawn import image_file, still, tone, video_file, wav_file
from site_server import names, ok, serving
from spaninfer_multimodal import (
    AudioJob,
    DecodePool,
    FetchPolicy,
    Forbidden,
    ImageJob,
    ImageLimits,
    MediaReader,
    SourcePolicy,
    TooLarge,
    VideoJob,
    decode_image,
)

PICTURE = image_file(still())
ALLOWED = FetchPolicy(allow_http=True, allowed_networks=(ipaddress.ip_network("127.0.0.1/32"),))


def data_url(data):
    """`data` inside a URL."""
    return "data:;base64," + base64.b64encode(data).decode()


@pytest.fixture(scope="module")
def pool():
    """One process."""
    with DecodePool(1) as pool:
        yield pool


def read(pool, source, job, **options):
    """Read one source."""

    async def run():
        return await MediaReader(pool, **options).read(source, job)

    return asyncio.run(run())


def test_media_of_each_kind_come_from_data_urls(pool):
    image = read(pool, data_url(PICTURE), ImageJob())
    video = read(pool, data_url(video_file(4)), VideoJob())
    audio = read(pool, data_url(wav_file(tone(16_000), 16_000)), AudioJob())

    np.testing.assert_array_equal(image.pixels, decode_image(PICTURE).pixels)
    assert (len(video.frames), audio.duration_s) == (4, 1.0)


def test_media_come_from_the_folder_that_is_allowed(pool, tmp_path):
    path = tmp_path / "picture.png"
    path.write_bytes(PICTURE)
    policy = SourcePolicy(folder=tmp_path)

    assert read(pool, path.as_uri(), ImageJob(), policy=policy).width == 32


def test_media_come_from_the_network_while_the_loop_goes_on(pool):
    async def run():
        async with serving({"/p.png": ok(PICTURE)}) as site:
            reader = MediaReader(
                pool, SourcePolicy(ALLOWED), resolver=names(media_example="127.0.0.1")
            )
            reads = [reader.read(site.url("/p.png"), ImageJob()) for _ in range(5)]
            return await asyncio.gather(*reads)  # the server answers in the same loop

    images = asyncio.run(run())

    assert len({image.digest for image in images}) == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("https://a.example/x.png", "send the media as a data: URL"),
        ("http://a.example/x.png", "send the media as a data: URL"),
        ("file:///etc/passwd", "send the media as a data: URL"),
        ("ftp://a.example/x.png", "is not fetched"),
        ("/etc/passwd", "is not fetched"),
        ("", "is not fetched"),
    ],
)
def test_every_other_source_is_closed_unless_opened(pool, source, message):
    with pytest.raises(Forbidden, match=message):
        read(pool, source, ImageJob())


def test_the_message_names_what_is_open(pool, tmp_path):
    policy = SourcePolicy(FetchPolicy(), tmp_path)

    with pytest.raises(Forbidden, match="data: or https: or file: URL"):
        read(pool, "ftp://a.example/x", ImageJob(), policy=policy)


def test_the_limit_of_the_job_is_the_limit_of_the_source(pool):
    with pytest.raises(TooLarge, match="at most 10"):
        read(pool, data_url(PICTURE), ImageJob(ImageLimits(max_bytes=10)))
