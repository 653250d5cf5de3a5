"""Bytes of every format, orientation and mode, whole and damaged, become pixels or our errors."""

import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image as Pillow
from spaninfer_multimodal import (
    FORMATS,
    ImageLimits,
    MediaError,
    TooLarge,
    Unreadable,
    decode_image,
)

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def encoded(picture, format="PNG", **options):
    """The bytes of a Pillow image."""
    data = BytesIO()
    picture.save(data, format, **options)
    return data.getvalue()


def png_header(width, height):
    """A PNG that promises these sizes and holds no pixels."""
    header = struct.pack(">II5B", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", b""), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


@pytest.mark.parametrize("format", ["PNG", "BMP"])
def test_lossless_formats_keep_every_pixel(format):
    image = decode_image(encoded(Pillow.fromarray(PIXELS), format))

    np.testing.assert_array_equal(image.pixels, PIXELS)
    assert (image.height, image.width) == (5, 7)
    assert not image.pixels.flags.writeable


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("colour", [(200, 30, 60), (0, 0, 0), (255, 255, 255)])
def test_every_format_keeps_an_even_colour(format, colour):
    image = decode_image(encoded(Pillow.new("RGB", (32, 16), colour), format))

    assert image.pixels.shape == (16, 32, 3)
    assert np.abs(image.pixels.astype(int) - colour).max() <= 4


ORIENTED = {
    1: lambda upright: upright,
    2: np.fliplr,
    3: lambda upright: np.rot90(upright, 2),
    4: np.flipud,
    5: lambda upright: upright.swapaxes(0, 1),
    6: lambda upright: np.rot90(upright, 1),
    7: lambda upright: np.rot90(upright, 2).swapaxes(0, 1),
    8: lambda upright: np.rot90(upright, -1),
}
"""How a camera stores an upright picture, by EXIF orientation (EXIF 2.32, tag 0x0112)."""


@pytest.mark.parametrize("orientation", ORIENTED)
def test_the_picture_is_turned_upright(orientation):
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    stored = np.ascontiguousarray(ORIENTED[orientation](PIXELS))

    image = decode_image(encoded(Pillow.fromarray(stored), exif=exif))

    np.testing.assert_array_equal(image.pixels, PIXELS)


def test_transparent_parts_show_the_background():
    rgba = np.zeros((1, 3, 4), np.uint8)
    rgba[0, 0] = 10, 20, 30, 255
    rgba[0, 1] = 10, 20, 30, 0
    rgba[0, 2] = 100, 100, 100, 51  # one fifth
    data = encoded(Pillow.fromarray(rgba))

    on_white, on_green = decode_image(data), decode_image(data, background=(0, 200, 0))

    assert on_white.pixels[0].tolist() == [[10, 20, 30], [255, 255, 255], [224, 224, 224]]
    assert on_green.pixels[0].tolist() == [[10, 20, 30], [0, 200, 0], [20, 180, 20]]


def test_a_transparent_palette_entry_shows_the_background():
    picture = Pillow.fromarray(np.array([[0, 1]], np.uint8), "P")
    picture.putpalette([255, 0, 0, 0, 0, 255])

    image = decode_image(encoded(picture, "PNG", transparency=1))

    assert image.pixels[0].tolist() == [[255, 0, 0], [255, 255, 255]]


def test_grey_pictures_have_three_equal_channels():
    grey = np.array([[0, 127, 255]], np.uint8)

    image = decode_image(encoded(Pillow.fromarray(grey)))

    np.testing.assert_array_equal(image.pixels, grey[..., None].repeat(3, -1))


def test_sixteen_bit_grey_keeps_its_upper_byte():
    grey = np.array([[0, 255, 256, 0x7FFF, 0xFFFF]], np.uint16)

    image = decode_image(encoded(Pillow.fromarray(grey)))

    assert image.pixels[0, :, 0].tolist() == [0, 0, 1, 127, 255]


def test_of_an_animation_the_first_frame_is_taken():
    red, blue = (Pillow.new("RGB", (4, 4), colour) for colour in ("red", "blue"))

    image = decode_image(encoded(red, "GIF", save_all=True, append_images=[blue]))

    assert (image.pixels == (255, 0, 0)).all()


def test_equal_pictures_have_one_digest_however_they_are_encoded():
    png = decode_image(encoded(Pillow.fromarray(PIXELS)))
    bmp = decode_image(encoded(Pillow.fromarray(PIXELS), "BMP"))
    other = decode_image(encoded(Pillow.fromarray(PIXELS.reshape(7, 5, 3))))

    assert png.digest == bmp.digest
    assert png.digest != other.digest


@pytest.mark.parametrize(
    ("data", "limits", "message"),
    [
        (png_header(60_000, 10), ImageLimits(), "60000 x 10; no side may pass 16384 pixels"),
        (png_header(9_000, 9_000), ImageLimits(), "81000000 pixels; at most 64000000"),
        (png_header(2**31 - 1, 2**31 - 1), ImageLimits(), "unpacks to too many pixels"),
        (png_header(4, 3), ImageLimits(max_pixels=11), "4 x 3, 12 pixels; at most 11"),
        (b"\0" * 101, ImageLimits(max_bytes=100), "101 bytes; at most 100"),
    ],
    ids=["side", "pixels", "bomb", "asked", "bytes"],
)
def test_what_is_too_large_is_refused_before_it_is_unpacked(data, limits, message):
    with pytest.raises(TooLarge, match=message):
        decode_image(data, limits)


@pytest.mark.parametrize(
    "data",
    [b"", b"not an image", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"II*\0" + bytes(60)],
    ids=["empty", "text", "svg", "tiff"],
)
def test_other_formats_are_refused_by_name(data):
    with pytest.raises(Unreadable, match="no image of the formats PNG, JPEG, WEBP, GIF, BMP"):
        decode_image(data)


def test_a_png_without_pixels_is_damaged():
    with pytest.raises(Unreadable, match="damaged"):
        decode_image(png_header(4, 3))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("format", FORMATS)
def test_damaged_data_never_raises_anything_but_our_errors(format):
    rng = np.random.default_rng(1)
    whole = encoded(Pillow.fromarray(np.tile(PIXELS, (4, 4, 1))), format)
    refused = 0

    for _ in range(200):
        data = bytearray(whole[: rng.integers(1, len(whole) + 1)])
        for place in rng.integers(0, len(data), 3):
            data[place] = rng.integers(256)
        try:
            decode_image(bytes(data), ImageLimits(max_pixels=10**6))
        except MediaError:
            refused += 1

    assert refused > 20


@pytest.mark.model
def test_pictures_made_to_break_decoders_are_refused(pictures):
    folder = pictures / "pillow"

    for name in ("broken_data_stream.png", "truncated_image.png", "truncated_jpeg.jpg"):
        with pytest.raises(Unreadable, match="damaged"):
            decode_image((folder / name).read_bytes())
    with pytest.raises(TooLarge, match="too many pixels"):
        decode_image((folder / "decompression_bomb.gif").read_bytes())


@pytest.mark.model
@pytest.mark.parametrize("number", range(2, 9))
def test_photographs_are_turned_upright(pictures, number):
    upright = decode_image((pictures / "pillow" / "hopper.jpg").read_bytes()).pixels.astype(int)

    data = (pictures / "pillow" / f"hopper_orientation_{number}.jpg").read_bytes()

    assert np.abs(decode_image(data).pixels - upright).mean() < 6
