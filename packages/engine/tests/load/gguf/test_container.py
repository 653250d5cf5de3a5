"""The container of GGUF beside the gguf package's own reader, and headers that are damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_model import write_gguf
from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load.gguf.container import open_container

NUMBERS = {
    "uint8": 200, "int8": -3, "uint16": 60_000, "int16": -300, "uint32": 4_000_000_000,
    "int32": -70_000, "uint64": 2**63, "int64": -(2**40), "float32": 0.1, "float64": 0.1,
    "bool": True,
}  # fmt: skip
LISTS = {
    "numbers": [1, -2, 3],
    "fractions": [0.5, -1e-3],
    "flags": [True, False],
    "texts": ["", "ä", "<|im_start|>", "a" * 1000],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with every type of value."""
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in NUMBERS.items():
        getattr(writer, f"add_{name}")(f"number.{name}", value)
    writer.add_string("text", "naïve")
    for name, values in LISTS.items():
        writer.add_array(f"list.{name}", values)
    writer.add_custom_alignment(64)
    writer.add_tensor("plain", np.arange(12, dtype=np.float32).reshape(3, 4))
    blocks = np.arange(68, dtype=np.uint8).reshape(2, 34)
    writer.add_tensor("coded", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_all_that_a_file_holds_is_what_the_gguf_package_reads(path: Path) -> None:
    theirs = gguf.GGUFReader(path)
    ours = open_container(path)

    fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert list(ours.values) == list(fields)
    for key, field in fields.items():
        value = ours.values[key]
        read = value if isinstance(value, bool | int | float | str) else list(value)
        assert read == field.contents(), key
    for found, expected in zip(ours.tensors, theirs.tensors, strict=True):
        assert (found.name, found.kind) == (expected.name, expected.tensor_type)
        assert found.shape == tuple(reversed(expected.shape.tolist()))
        assert found.data.tobytes() == expected.data.tobytes()


def test_texts_are_a_sequence(path: Path) -> None:
    texts = open_container(path).values["list.texts"]

    assert [texts[at] for at in range(len(texts))] == LISTS["texts"]
    assert [*texts[1:3]] == LISTS["texts"][1:3]
    assert texts[-2] == "<|im_start|>"
    assert texts.index("ä") == 1


def header(*values: bytes, num_keys: int = 1) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, num_keys) + b"".join(values)


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GGUF", "truncated"),
        (b"GGML" + bytes(60), "does not begin with GGUF"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "its version is 1"),
        (header(num_keys=2**63), "truncated"),
        (header(text(b"k"), struct.pack("<I", 13)), "the type 13"),
        (header(*(text(b"k") + struct.pack("<IB", 7, 1),) * 2, num_keys=2), "'k' is there twice"),
        (header(text(b"\xff"), struct.pack("<IB", 7, 1)), "utf-8"),
        (header(text(b"k"), struct.pack("<IIQ", 9, 8, 1), text(b"\xff")), "utf-8"),
        (header(text(b"k"), struct.pack("<IIQ", 9, 8, 2**60), text(b"a")), "all.gguf"),
        (header(text(b"k"), struct.pack("<IIQQ", 9, 8, 1, 2**63)), "truncated"),
        (header(text(b"k"), struct.pack("<IIQ", 9, 4, 2**62)), "truncated"),
        (header(text(b"k"), struct.pack("<I", 9), struct.pack("<IQ", 9, 1) * 100_000), "recursion"),
        (header(text(b"general.alignment"), struct.pack("<II", 4, 48)), "power of two"),
        (header(text(b"general.alignment"), struct.pack("<II", 4, 0)), "power of two"),
    ],
)  # fmt: skip
def test_what_a_header_may_not_say_is_refused_by_name(path: Path, data: bytes, says: str) -> None:
    path.write_bytes(data)

    with pytest.raises(CheckpointError, match=says):
        open_container(path)


def test_tensors_of_one_name_and_of_many_dimensions_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "two.gguf", {"": "Q8_0"})
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"blk.1.attn_q.weight", b"blk.0.attn_q.weight"))
    with pytest.raises(CheckpointError, match="the same name"):
        open_container(path)

    at = whole.index(b"blk.1.attn_q.weight") + len("blk.1.attn_q.weight")
    path.write_bytes(whole[:at] + struct.pack("<I", 2**32 - 1) + whole[at + 4 :])
    with pytest.raises(CheckpointError, match="4294967295 dimensions"):
        open_container(path)
