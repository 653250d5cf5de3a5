"""Cost of files built to exhaust a decoder, each decoded in a process of its own."""

import json
import struct
import subprocess
import sys
import zlib
from base64 import b64encode

import pytest
from drawn import image_file, still

if sys.platform != "linux":
    pytest.skip(
        "reads /proc: ru_maxrss begins with the peak of the parent", allow_module_level=True
    )

MEASURE = """
import json, sys
from base64 import b64decode
from time import process_time
from spaninfer_multimodal import MediaError, decode_image, decode_video

def status(key):
    return int(open("/proc/self/status").read().partition(key)[2].split()[0]) * 1024

before_bytes, before_s = status("VmRSS:"), process_time()
errors = []
for kind, text in json.load(sys.stdin):
    try:
        {"image": decode_image, "video": decode_video}[kind](b64decode(text))
        errors.append(None)
    except MediaError as raised:
        errors.append(type(raised).__name__)
cpu_s = process_time() - before_s
print(status("VmHWM:") - before_bytes, cpu_s, *errors)
"""
MAX_BYTES, MAX_CPU_S = 100e6, 2.0
"""What files that are made to exhaust a decoder may cost, all of them together."""


def cost(files):
    """What decoding (kind, data) costs a process: bytes at most, CPU seconds; and the errors."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEASURE],
        input=json.dumps([(kind, b64encode(data).decode()) for kind, data in files]),
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    peak, cpu_s, *errors = run.stdout.split()
    return int(peak), float(cpu_s), errors


def png(width, height, body):
    """A PNG of these sizes whose pixels are `body`."""
    header = struct.pack(">II5B", width, height, 1, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", body), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def gif(width, height, frame_width, frame_height):
    """A GIF whose canvas and first frame promise these sizes."""
    frame = struct.pack("<HHHHB", 0, 0, frame_width, frame_height, 0)
    return (
        b"GIF89a"
        + struct.pack("<HHBBB", width, height, 0, 0, 0)
        + b","
        + frame
        + b"\x02\x02D\x01\0;"
    )


def repeated(count):
    """A deflated stream of `count` zeros, a thousandth of their size."""
    packer = zlib.compressobj(9)
    blocks = [packer.compress(bytes(2**20)) for _ in range(count >> 20)]
    return b"".join(blocks) + packer.flush()


def png_with_text(num_bytes):
    """A good PNG with a compressed comment that unpacks to `num_bytes`."""
    body = b"Comment\0\0" + repeated(num_bytes)
    chunk = (
        struct.pack(">I", len(body))
        + b"zTXt"
        + body
        + struct.pack(">I", zlib.crc32(b"zTXt" + body))
    )
    whole = image_file(still())
    return whole[:33] + chunk + whole[33:]


def test_bombs_are_refused_before_they_go_off():
    bombs = {
        "png 65535 x 66601": ("image", png(65535, 66601, repeated(2**20))),
        "gif 65535 x 65535": ("image", gif(65535, 65535, 1, 1)),
        "gif frame beyond its canvas": ("image", gif(1, 1, 65535, 65535)),
        "gif as video": ("video", gif(65535, 65535, 1, 1)),
        "png comment of 256 MB": ("image", png_with_text(2**28)),
    }

    peak, cpu_s, errors = cost(list(bombs.values()))

    assert errors == ["TooLarge", "TooLarge", "TooLarge", "TooLarge", "Unreadable"]
    assert peak < MAX_BYTES
    assert cpu_s < MAX_CPU_S


BROKEN = (
    "decompression_bomb.gif", "decompression_bomb.ico", "decompression_bomb_extents.gif",
    "broken_data_stream.png", "truncated_image.png", "truncated_jpeg.jpg", "zero_height.j2k",
    "zero_width.gif", "invalid_header_length.jp2",
)  # fmt: skip


@pytest.mark.model
def test_real_broken_files_cost_little(pictures, videos):
    files = [("image", (pictures / "pillow" / name).read_bytes()) for name in BROKEN]
    files += [("video", data) for _, data in files if data.startswith(b"GIF")]
    files += [("video", (videos / "corrupted.mp4").read_bytes())]

    peak, cpu_s, errors = cost(files)

    assert errors.count("None") == 1  # the first frame of the bomb that is one in its second
    assert peak < MAX_BYTES
    assert cpu_s < MAX_CPU_S
