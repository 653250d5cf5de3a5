"""Private memory that building a model takes, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from gguf_model import matrices, write_gguf
from ml_dtypes import bfloat16
from random_llama import write_model
from spaninfer_engine.config import Quantize
from spaninfer_engine.load.gguf.blocks import BLOCK_TYPES
from spaninfer_engine.tools.conversion import convert

# Prints by how many bytes the memory of its own grew, at the most, while the second model was
# built (with the first, libraries and compilers have come), and how many bytes of its files are
# still in the process's memory.
BUILDING = """
import sys
from threading import Event, Thread
from spaninfer_engine import EngineConfig
from spaninfer_engine.startup.build import build

def private_bytes():
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

def mapped_bytes(folder):
    with open("/proc/self/smaps") as accounts:
        of_files = [one for one in accounts.read().split("VmFlags") if folder in one]
    lines = [line for one in of_files for line in one.splitlines() if line.startswith("Rss:")]
    return sum(int(line.split()[1]) for line in lines) * 1024

def built(folder):
    return build(
        EngineConfig(
            model=folder,
            backend=backend,
            device="cpu",
            quantize=quantize or None,
            memory=1 << 22,
            tune=False,  # it compiles kernels for the second model alone
        )
    )

def watch():
    while not done.wait(0.001):
        seen.append(private_bytes())

backend, quantize, small, large = sys.argv[1:]
built(small).runner.close()
done, seen = Event(), [private_bytes()]
watcher = Thread(target=watch)
watcher.start()
parts = built(large)
done.set()
watcher.join()
print(max(seen) - seen[0], mapped_bytes(large))
"""

# Prints by how many private bytes a process grew, at the most, while it packed the weights of each
# second file for steps; with the first of a pair, its kernels have come. Tokenizers are no weights:
# none is opened.
PACKING = """
import gc
import sys
from threading import Event, Thread
from spaninfer_engine import EngineConfig
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.program.bind import bind
from spaninfer_engine.program.lower import lower
from spaninfer_engine.startup.build import open_on_cpu

def private_bytes():
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

def packed(path, kept):
    asked = EngineConfig(model=path, backend="cpu")
    checkpoint = kept.enter_context(open_checkpoint(path))
    decoder, ops = open_on_cpu(asked, checkpoint)
    checkpoint.reader.read("model.norm.weight")
    gc.collect()
    done, seen = Event(), [private_bytes()]

    def watch():
        while not done.wait(0.001):
            seen.append(private_bytes())

    watcher = Thread(target=watch)
    watcher.start()
    kept.bound = bind(lower(decoder), ops, checkpoint.reader)
    done.set()
    watcher.join()
    return max(*seen, private_bytes()) - seen[0]

from contextlib import ExitStack
paths = sys.argv[1:]
for small, large in zip(paths[::2], paths[1::2]):
    with ExitStack() as first, ExitStack() as second:
        packed(small, first)
        print(packed(large, second))
"""


def grown(backend: str, quantize: str, small: Path, large: Path) -> int:
    """Return by how many bytes building `large` made a process grow."""
    return _printed(BUILDING, backend, quantize, small, large)[0]


def _printed(program: str, *arguments: str | Path) -> list[int]:
    """Return the numbers that a program prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


class Pair(NamedTuple):
    """Folders of a model of one layer and of one of twelve, and how many numbers the latter has."""

    small: Path
    large: Path
    num_weights: int


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[type], Pair]:
    """Return models whose weights are of a type."""

    @cache
    def written(dtype: type) -> Pair:
        folder = tmp_path_factory.mktemp("models")
        small, large = folder / "small", folder / "large"
        write_model(small, 1, dtype)
        return Pair(small, large, write_model(large, 12, dtype))

    return written


SPANS = 4 << 20

linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's accounts")


@linux
@pytest.mark.parametrize("quantize", ["", "int4"])
def test_of_files_whose_weights_are_packed_next_to_nothing_stays_in_memory(
    models: Callable[[type], Pair], quantize: str
):
    model = models(bfloat16)

    _, mapped = _printed(BUILDING, "cpu", quantize, model.small, model.large)

    assert mapped <= 0.1 * model.num_weights * bfloat16(0).itemsize


@linux
@pytest.mark.parametrize(
    ("backend", "dtype", "quantize", "item_bytes"),
    [
        ("cpu", np.float32, "", 4),
        ("cpu", bfloat16, "", 2),
        ("cpu", np.float32, "bfloat16", 2),
        ("cpu", bfloat16, "int8", 1.125),
        ("cpu", bfloat16, "int4", 0.625),
        ("torch", np.float32, "", 4),
        ("torch", bfloat16, "", 2),
    ],
)
def test_building_takes_little_more_than_the_weights_in_the_type_they_are_computed_in(
    models: Callable[[type], Pair], backend: str, dtype: type, quantize: str, item_bytes: float
):
    model = models(dtype)

    bytes_grown = grown(backend, quantize, model.small, model.large)

    assert bytes_grown <= 1.2 * model.num_weights * item_bytes + SPANS


@linux
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_converted_weights_are_used_where_they_are_mapped(
    models: Callable[[type], Pair], tmp_path: Path, quantize: Quantize | None
):
    model = models(bfloat16)
    out = convert(model.large, tmp_path / "out", quantize=quantize)

    bytes_grown = grown("cpu", quantize or "", model.small, out)

    assert bytes_grown <= 0.05 * model.num_weights + SPANS


TIED = 1 << 16  # tokens, whose table is 16 MiB with a byte for each code
CHUNKS = 8 << 20  # rows of a megabyte of codes, and what is made of them on their way
FORMATS = ("Q4_0", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS")


@pytest.fixture(scope="module")
def grown_by_format(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """By how many bytes packing a model whose embedding is its head made a process grow."""
    folder = tmp_path_factory.mktemp("formats")
    paths = []
    for name in FORMATS:
        paths += [
            write_gguf(folder / f"{name}-small.gguf", {"": name}, tied=True),
            write_gguf(folder / f"{name}-large.gguf", {"": name}, vocab=TIED, tied=True),
        ]
    return dict(zip(FORMATS, _printed(PACKING, *paths), strict=True))


@linux
@pytest.mark.parametrize("name", FORMATS)
def test_packing_codes_takes_little_more_than_their_bytes_in_the_file(
    grown_by_format: dict[str, int], name: str
):
    """The embedding, which is the head too, is a table neither of codes in bytes nor of float32."""
    weights = sum(rows * columns for rows, columns in matrices(TIED, tied=True).values())
    stored = weights * BLOCK_TYPES[name].format.stored_bits / 8

    assert grown_by_format[name] < 1.15 * stored + CHUNKS


# Prints by how many private bytes a process grew, at the most, while it opened the second file.
OPENING = """
import sys
from threading import Event, Thread
from spaninfer_engine.load import open_checkpoint

def private_bytes():
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

def watch():
    while not done.wait(0.001):
        seen.append(private_bytes())

small, large = sys.argv[1:]
open_checkpoint(small).close()
done, seen = Event(), [private_bytes()]
watcher = Thread(target=watch)
watcher.start()
with open_checkpoint(large):
    done.set()
    watcher.join()
    print(max(*seen, private_bytes()) - seen[0])
"""


@linux
def test_texts_of_a_gguf_file_stay_in_it(tmp_path: Path):
    """Of 65,000 pieces and merges, private are their places and types, and what tells types."""
    small = write_gguf(tmp_path / "small.gguf", {"": "Q4_K"}, vocab=512, byte_bpe=True)
    large = write_gguf(tmp_path / "large.gguf", {"": "Q4_K"}, vocab=TIED, byte_bpe=True)

    [bytes_grown] = _printed(OPENING, small, large)

    assert bytes_grown < 64 * TIED
