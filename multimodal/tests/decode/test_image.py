"""Decoded images of every format, orientation and mode; damaged files raise MediaError."""

import struct
import zlib

import numpy as np
import pytest
from drawn import damaged, image_file
from PIL import Image as Pillow
from PIL import ImageOps
from spaninfer_multimodal import (
    ImageLimits,
    MediaError,
    TooLarge,
    Unreadable,
    Video,
    decode_image,
)

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "AVIF", "TIFF", "BMP")

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def png_header(width, height):
    """A PNG that promises these sizes and holds no pixels."""
    header = struct.pack(">II5B", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", b""), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def webp_canvas(width, height):
    """An animated WebP that promises a canvas of these sizes."""
    flags = b"\x02\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    chunks = b"VP8X" + struct.pack("<I", 10) + flags + b"ANIM" + struct.pack("<I", 6) + bytes(6)
    still = image_file(Pillow.new("RGB", (4, 4)), "WEBP", lossless=True)[12:]
    frame = bytes(6) + (3).to_bytes(3, "little") * 2 + bytes(4) + still
    chunks += b"ANMF" + struct.pack("<I", len(frame)) + frame
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WEBP" + chunks


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF"])
def test_lossless_formats_keep_every_pixel(format):
    image = decode_image(image_file(Pillow.fromarray(PIXELS), format))

    np.testing.assert_array_equal(image.pixels, PIXELS)
    assert (image.height, image.width) == (5, 7)
    assert not image.pixels.flags.writeable


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("colour", [(200, 30, 60), (0, 0, 0), (255, 255, 255)])
def test_every_format_keeps_an_even_colour(format, colour):
    image = decode_image(image_file(Pillow.new("RGB", (32, 16), colour), format))

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

    image = decode_image(image_file(Pillow.fromarray(stored), exif=exif))

    np.testing.assert_array_equal(image.pixels, PIXELS)


def test_transparent_parts_show_the_background():
    rgba = np.zeros((1, 3, 4), np.uint8)
    rgba[0, 0] = 10, 20, 30, 255
    rgba[0, 1] = 10, 20, 30, 0
    rgba[0, 2] = 100, 100, 100, 51  # one fifth
    data = image_file(Pillow.fromarray(rgba))

    on_white, on_green = decode_image(data), decode_image(data, background=(0, 200, 0))

    assert on_white.pixels[0].tolist() == [[10, 20, 30], [255, 255, 255], [224, 224, 224]]
    assert on_green.pixels[0].tolist() == [[10, 20, 30], [0, 200, 0], [20, 180, 20]]


def test_a_transparent_palette_entry_shows_the_background():
    picture = Pillow.fromarray(np.array([[0, 1]], np.uint8), "P")
    picture.putpalette([255, 0, 0, 0, 0, 255])

    image = decode_image(image_file(picture, "PNG", transparency=1))

    assert image.pixels[0].tolist() == [[255, 0, 0], [255, 255, 255]]


def test_grey_pictures_have_three_equal_channels():
    grey = np.array([[0, 127, 255]], np.uint8)

    image = decode_image(image_file(Pillow.fromarray(grey)))

    np.testing.assert_array_equal(image.pixels, grey[..., None].repeat(3, -1))


def test_sixteen_bit_grey_keeps_its_upper_byte():
    grey = np.array([[0, 255, 256, 0x7FFF, 0xFFFF]], np.uint16)

    image = decode_image(image_file(Pillow.fromarray(grey)))

    assert image.pixels[0, :, 0].tolist() == [0, 0, 1, 127, 255]


def test_a_transparent_grey_of_16_bits_shows_the_background():
    grey = np.array([[0, 0x1234]], np.uint16)

    image = decode_image(image_file(Pillow.fromarray(grey), transparency=0x1234))

    assert image.pixels[0, :, 0].tolist() == [0, 255]


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_pixels_without_agreed_colours_are_refused(dtype):
    data = image_file(Pillow.fromarray(np.zeros((2, 2), dtype)), "TIFF")

    with pytest.raises(Unreadable, match="no agreed colours on a screen: convert it to 8-bit RGB"):
        decode_image(data)


@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
def test_inks_become_light(format):
    cmyk = Pillow.new("CMYK", (16, 16), (0, 255, 255, 0))  # magenta and yellow are red

    pixels = decode_image(image_file(cmyk, format)).pixels

    assert np.abs(pixels.astype(int) - (255, 0, 0)).max() <= 4


def test_of_an_animation_the_first_frame_is_taken():
    red, blue = (Pillow.new("RGB", (4, 4), colour) for colour in ("red", "blue"))

    image = decode_image(image_file(red, "GIF", save_all=True, append_images=[blue]))

    assert (image.pixels == (255, 0, 0)).all()


def test_equal_pictures_have_one_digest_however_they_are_encoded():
    png = decode_image(image_file(Pillow.fromarray(PIXELS)))
    bmp = decode_image(image_file(Pillow.fromarray(PIXELS), "BMP"))
    other = decode_image(image_file(Pillow.fromarray(PIXELS.reshape(7, 5, 3))))

    assert png.digest == bmp.digest
    assert png.digest != other.digest


def test_equal_bytes_of_other_shapes_and_modes_have_other_digests():
    """As CVE-2025-46722: a key of bytes alone takes one picture for another."""
    raw = bytes(range(250)) * 36
    palette = [255 - number // 3 for number in range(768)]
    made = [
        Pillow.frombytes("RGB", (30, 100), raw),
        Pillow.frombytes("RGB", (100, 30), raw),
        Pillow.frombytes("L", (90, 100), raw),
        Pillow.frombytes("L", (100, 90), raw),
        Pillow.frombytes("P", (90, 100), raw),
        Pillow.frombytes("RGBX", (75, 30), raw).convert("RGB"),
    ]
    made[4].putpalette(palette)

    images = [decode_image(image_file(each)) for each in made]

    assert len({image.digest for image in images}) == len(made)
    assert images[0].pixels.tobytes() == images[1].pixels.tobytes() == raw
    still = Video(images[0].pixels[None], (0,), 1.0, 1)
    assert still.frames.tobytes() == raw
    assert still.digest != images[0].digest


@pytest.mark.parametrize(
    ("data", "limits", "message"),
    [
        (png_header(60_000, 10), ImageLimits(), "60000 x 10; no side may exceed 16384 pixels"),
        (webp_canvas(16_383, 10_000), ImageLimits(), "16383 x 10000, 163830000 pixels"),
        (png_header(9_000, 9_000), ImageLimits(), "81000000 pixels; at most 64000000"),
        (png_header(2**31 - 1, 2**31 - 1), ImageLimits(), "unpacks to too many pixels"),
        (png_header(4, 3), ImageLimits(max_pixels=11), "4 x 3, 12 pixels; at most 11"),
        (b"\0" * 101, ImageLimits(max_bytes=100), "101 bytes; at most 100"),
    ],
    ids=["side", "canvas", "pixels", "bomb", "asked", "bytes"],
)
def test_what_is_too_large_is_refused_before_it_is_unpacked(data, limits, message):
    with pytest.raises(TooLarge, match=message):
        decode_image(data, limits)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the image is empty: 0 bytes"),
        (b"words", "of an unknown format, not PNG, JPEG, WebP, GIF, AVIF, TIFF or BMP"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG or other XML, which is not decoded"),
        (b"<!DOCTYPE html><p>not found", "an HTML page, not PNG"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000, which is not decoded, not PNG"),
        (b"\0\0\1\0" + bytes(60), "ICO, which is not decoded"),
        (b"#EXTM3U\nhttp://127.0.0.1/", "an HLS playlist, which is not decoded"),
        (b"ffconcat version 1.0\nfile /etc/passwd", "an FFmpeg concat script"),
        (b"\0\0\0\x18ftypheic" + bytes(60), "HEIC, which is not decoded"),
        (b"RIFF\0\0\0\0WAVEfmt ", "WAV, which holds no image"),
        (b"II*\0" + bytes(60), "the TIFF image has a damaged header"),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else "",
)
def test_other_formats_are_refused_by_name(data, message):
    with pytest.raises(Unreadable, match=message):
        decode_image(data)


def test_a_png_without_pixels_is_damaged():
    with pytest.raises(Unreadable, match="damaged"):
        decode_image(png_header(4, 3))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("format", FORMATS)
def test_damaged_data_never_raises_anything_but_our_errors(format):
    refused = 0

    for data in damaged(image_file(Pillow.fromarray(np.tile(PIXELS, (4, 4, 1))), format), 100):
        try:
            decode_image(data, ImageLimits(max_pixels=10**6))
        except MediaError:
            refused += 1

    assert refused > 10


REFUSED = {
    "broken_data_stream.png": (Unreadable, "PNG image is damaged: unrecognized data stream"),
    "decompression_bomb.gif": (TooLarge, "too many pixels.*4364696535"),
    "decompression_bomb.ico": (Unreadable, "ICO"),
    "hopper.Lab.tif": (Unreadable, "Lab colours"),
    "hopper.ppm": (Unreadable, "unknown format"),
    "hopper.qoi": (Unreadable, "QOI"),
    "hopper_16bit.pgm": (Unreadable, "unknown format"),
    "hopper_long_name.im": (Unreadable, "unknown format"),
    "invalid_header_length.jp2": (Unreadable, "JPEG 2000"),
    "multipage_rgb.tif": (Unreadable, "TIFF image has a damaged header, or is of a variant"),
    "test-card-lossless.jp2": (Unreadable, "JPEG 2000"),
    "truncated_image.png": (Unreadable, "PNG image is damaged: image file is truncated"),
    "truncated_jpeg.jpg": (Unreadable, "JPEG image is damaged: image file is truncated"),
    "zero_height.j2k": (Unreadable, "JPEG 2000"),
    "zero_width.gif": (Unreadable, "GIF image has a damaged header"),
}
"""The real files that are not decoded: of other formats, or made to break decoders."""


@pytest.mark.model
@pytest.mark.parametrize("folder", ["pillow", pytest.param("*", marks=pytest.mark.slow)])
def test_every_real_picture_is_what_pillow_decodes_or_fails_with_its_cause(pictures, folder):
    for path in sorted(pictures.glob(f"{folder}/*.*")):
        if path.name in REFUSED:
            error, message = REFUSED[path.name]
            with pytest.raises(error, match=message):
                decode_image(path.read_bytes())
            continue
        image = decode_image(path.read_bytes())
        with Pillow.open(path) as picture:
            upright = ImageOps.exif_transpose(picture)
            if picture.mode == "I;16":
                expected = np.asarray(upright)[..., None] // 256
            else:
                over = upright.convert("RGBA")
                white = Pillow.new("RGBA", over.size, "white")
                expected = np.asarray(Pillow.alpha_composite(white, over).convert("RGB"))
        difference = np.abs(image.pixels.astype(int) - expected)
        if picture.mode != "I;16" or "transparency" not in picture.info:
            assert difference.max() <= 1, path.name


@pytest.mark.model
@pytest.mark.parametrize("number", range(2, 9))
def test_photographs_are_turned_upright(pictures, number):
    upright = decode_image((pictures / "pillow" / "hopper.jpg").read_bytes()).pixels.astype(int)

    data = (pictures / "pillow" / f"hopper_orientation_{number}.jpg").read_bytes()

    assert np.abs(decode_image(data).pixels - upright).mean() < 6
