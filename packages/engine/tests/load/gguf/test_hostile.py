"""GGUF files that promise tensors which are not in them: sizes whose product does not fit into an
integer, and places outside of the file (as CVE-2026-53923 and CVE-2026-7482).
"""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_model import HIDDEN, INNER, write_gguf
from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load.gguf.model import open_gguf

NAME = "blk.0.ffn_up.weight"
F32, Q8_0 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0


def promising(path: Path, sizes: list[int], kind: int = F32, offset: int | None = None) -> Path:
    """Write a model whose tensor has these sizes, innermost first, and lies at this offset."""
    write_gguf(path, {"": "Q8_0"}, expanded=True)
    data = bytearray(path.read_bytes())
    at = data.index(NAME.encode()) + len(NAME)
    (num_sizes,) = struct.unpack_from("<I", data, at)
    kept = struct.unpack_from("<Q", data, at + 4 + 8 * num_sizes + 4)[0]
    head = struct.pack("<I", len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)
    head += struct.pack("<IQ", kind, kept if offset is None else offset)
    assert len(sizes) == num_sizes, "what follows keeps its place"
    data[at : at + 4 + 8 * num_sizes + 12] = head
    path.write_bytes(data)
    return path


def test_what_is_written_here_is_read_as_it_was(tmp_path: Path) -> None:
    path = promising(tmp_path / "same.gguf", [HIDDEN, INNER])

    assert open_gguf(path).reader.read("model.layers.0.mlp.up_proj.weight").shape == (INNER, HIDDEN)


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [
        ([2**33, 2**33], F32),  # 4 * 2**66 bytes
        ([2**32, 2**32], F32),  # 2**64 elements: 0, cut to 64 bits
        ([2**31, 2**31], F32),  # 2**62 elements, 2**64 bytes
        ([2**63, 2], F32),
        ([2**64 - 1, 2**64 - 1], F32),  # 1, cut to 64 bits
        ([2**16, 2**16], F32),  # 2**32 elements: 0, cut to 32 bits
        ([2**31, 1], F32),
        ([32 * 2**58, 2], Q8_0),
    ],
)
def test_sizes_that_the_file_does_not_hold_are_refused(
    tmp_path: Path, sizes: list[int], kind: int
) -> None:
    path = promising(tmp_path / "large.gguf", sizes, kind)

    with pytest.raises(CheckpointError, match=rf"tensor '{NAME}' ends at byte .* is truncated"):
        open_gguf(path)


@pytest.mark.parametrize("offset", [2**64 - HIDDEN * INNER * 4, 2**64 - 32, 2**63, 2**40, 2**32])
def test_places_outside_of_the_file_are_refused(tmp_path: Path, offset: int) -> None:
    path = promising(tmp_path / "away.gguf", [HIDDEN, INNER], offset=offset)

    with pytest.raises(CheckpointError, match=rf"tensor '{NAME}' ends at byte .* is truncated"):
        open_gguf(path)


@pytest.mark.parametrize("sizes", [[0, 2**63], [2**63, 0], [0, 0], [HIDDEN, 0]])
def test_empty_tensors_are_refused_or_read_as_empty(tmp_path: Path, sizes: list[int]) -> None:
    path = promising(tmp_path / "empty.gguf", sizes)

    try:
        read = open_gguf(path).reader.read("model.layers.0.mlp.up_proj.weight")
    except CheckpointError:
        return

    assert np.size(read) == 0


def test_blocks_that_are_cut_in_a_row_are_refused(tmp_path: Path) -> None:
    path = promising(tmp_path / "cut.gguf", [33, 2], Q8_0)

    with pytest.raises(CheckpointError, match=r"cut\.gguf"):
        open_gguf(path)
