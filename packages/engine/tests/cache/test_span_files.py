"""Span files: read as written; anything else is rejected."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from spaninfer_engine.cache.span_files import DamagedSpan, SpanFiles, SpanKey
from spaninfer_engine.errors import ConfigError

ONE, OTHER = SpanKey(0, bytes(range(32))), SpanKey(1, bytes(range(32)))
CONTENT = np.arange(200, dtype=np.uint8)


def read(files: SpanFiles, key: SpanKey, size: int = len(CONTENT)) -> NDArray[np.uint8]:
    into = np.zeros(size, np.uint8)
    files.read(key, into)
    return into


@pytest.fixture
def span_files(tmp_path: Path) -> SpanFiles:
    return SpanFiles.open(tmp_path / "models" / "one")


def test_a_span_is_read_as_it_was_written(span_files: SpanFiles) -> None:
    size = span_files.write(ONE, CONTENT)
    span_files.write(OTHER, CONTENT[::-1].copy())

    assert (read(span_files, ONE) == CONTENT).all()
    assert (read(span_files, OTHER) == CONTENT[::-1]).all()
    sizes = {key: file.num_bytes for key, file in span_files.listing().items()}
    assert sizes == {ONE: size, OTHER: size}
    assert {path.stat().st_size for path in span_files.folder.iterdir()} == {size}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
def test_folder_and_files_are_their_owners_alone(span_files: SpanFiles) -> None:
    span_files.write(ONE, CONTENT)

    modes = [
        path.stat().st_mode & 0o777 for path in (span_files.folder, *span_files.folder.iterdir())
    ]
    assert modes == [0o700, 0o600]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
def test_a_folder_in_which_others_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)

    with pytest.raises(ConfigError, match="others may write in it; name another with --kv-disk"):
        SpanFiles.open(tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match="cannot be used"):
        SpanFiles.open(tmp_path / "file" / "folder")


@pytest.mark.parametrize("at", [0, 8, 9, 16, 31, 32, 100, 231])
def test_a_byte_that_changed_makes_a_span_damaged(at: int, span_files: SpanFiles) -> None:
    span_files.write(ONE, CONTENT)
    path = span_files.folder / ONE.file_name
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)

    with pytest.raises(DamagedSpan):
        read(span_files, ONE)
    assert not path.exists()


@pytest.mark.parametrize("size", [0, 1, 31, 32, 231, 233, 5000])
def test_a_file_of_another_length_is_damaged(size: int, span_files: SpanFiles) -> None:
    span_files.write(ONE, CONTENT)
    path = span_files.folder / ONE.file_name
    path.write_bytes((path.read_bytes() + bytes(5000))[:size])

    with pytest.raises(DamagedSpan):
        read(span_files, ONE)


def test_a_span_of_another_size_is_damaged(span_files: SpanFiles) -> None:
    span_files.write(ONE, CONTENT)

    with pytest.raises(DamagedSpan):
        read(span_files, ONE, len(CONTENT) - 1)


def test_a_file_under_the_name_of_another_span_is_damaged(span_files: SpanFiles) -> None:
    span_files.write(ONE, CONTENT)
    (span_files.folder / ONE.file_name).rename(span_files.folder / OTHER.file_name)

    with pytest.raises(DamagedSpan):
        read(span_files, OTHER)


def test_spans_are_listed_in_the_order_of_their_last_use(span_files: SpanFiles) -> None:
    for key in (ONE, OTHER):
        span_files.write(key, CONTENT)
        os.utime(span_files.folder / key.file_name, (1000 + key.group, 1000 + key.group))

    before = list(span_files.listing())
    read(span_files, ONE)

    assert before == [ONE, OTHER]
    assert list(span_files.listing()) == [OTHER, ONE]


def test_files_of_others_are_left_alone_and_what_a_killed_process_left_is_removed(
    span_files: SpanFiles,
) -> None:
    left, young = (f".{'ab' * 32}.{token * 16}.tmp" for token in "01")
    others = {"README.md", "0-abc.span", f"x-{'ab' * 32}.span", ".notes.tmp", young}
    for name in (left, *others):
        (span_files.folder / name).touch()
    os.utime(span_files.folder / left, (1000, 1000))

    again = SpanFiles.open(span_files.folder)

    assert again.listing() == {}
    assert {path.name for path in span_files.folder.iterdir()} == others
