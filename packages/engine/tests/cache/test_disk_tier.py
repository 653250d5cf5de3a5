"""The disk tier: how much is kept, and what happens when the disk does not go along."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from spaninfer_engine.cache.disk_tier import DiskTier
from spaninfer_engine.cache.host_slots import HostSlots
from spaninfer_engine.cache.span_files import SpanFiles, SpanKey
from spaninfer_engine.cache.span_transfer import SpanTransfer

FILE_BYTES = 32 + 16  # header and span


class Tier:
    """A disk tier under a folder, with slots of one group."""

    def __init__(self, folder: Path, *, num_slots: int = 8, num_files: int = 100) -> None:
        files = SpanFiles.open(folder)
        self.memory = np.zeros((num_slots, 16), np.uint8)
        self.slots = HostSlots(num_slots)
        self.transfer = SpanTransfer(files, [self.memory])
        limit_bytes = num_files * FILE_BYTES
        self.disk = DiskTier(self.transfer, [self.slots], files.listing(), limit_bytes)
        self.folder = folder

    def store(self, *numbers: int) -> None:
        """Put spans into slots, and have them written."""
        for number in numbers:
            slot = self.slots.take()
            assert slot is not None
            self.memory[slot] = number
            self.slots.put(key(number).span_hash, slot)
            self.disk.write(key(number), slot)

    def finish(self) -> None:
        """Have everything done that was asked for, and take it in."""
        self.disk.submit(lambda: None)
        self.disk.close()
        self.disk.take_done()
        self.slots.check()

    @property
    def on_disk(self) -> set[int]:
        """The spans that have files."""
        return {found.span_hash[0] for found in SpanFiles(self.folder).listing()}


def key(number: int) -> SpanKey:
    return SpanKey(0, bytes([number] * 32))


def test_the_files_used_longest_ago_are_removed_beyond_the_limit(tmp_path: Path) -> None:
    first = Tier(tmp_path / "spans", num_files=3)
    first.store(1, 2, 3)
    first.finish()
    again = Tier(tmp_path / "spans", num_files=3)
    again.disk.begin_fetch(7, [key(1)])
    again.finish()

    last = Tier(tmp_path / "spans", num_files=3)
    last.store(4)
    last.finish()
    removing = Tier(tmp_path / "spans", num_files=3)
    removing.finish()

    assert removing.on_disk == {1, 3, 4}
    assert removing.disk.num_bytes == 3 * FILE_BYTES


def test_writes_that_take_more_than_half_of_the_slots_are_dropped_and_counted(
    tmp_path: Path,
) -> None:
    tier = Tier(tmp_path / "spans", num_slots=8)

    tier.store(*range(1, 7))
    assert tier.slots.num_available == 4
    tier.finish()

    assert tier.on_disk == {1, 2, 3, 4}
    assert (tier.disk.counts.written, tier.disk.counts.dropped) == (4, 2)
    assert tier.slots.num_available == 8


def test_a_disk_that_takes_nothing_ends_writing_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = Tier(tmp_path / "spans")
    shutil.rmtree(tier.folder)

    with caplog.at_level(logging.WARNING):
        tier.store(1, 2, 3)
        tier.finish()

    assert len(caplog.messages) == 1
    assert "no more spans of the KV cache are written to" in caplog.text
    assert (tier.disk.counts.failed, tier.disk.num_bytes) == (3, 0)
    assert tier.slots.num_available == 8


def test_a_span_that_two_sequences_wait_for_is_read_once(tmp_path: Path) -> None:
    first = Tier(tmp_path / "spans")
    first.store(1, 2)
    first.finish()
    tier = Tier(tmp_path / "spans", num_slots=2)
    fetches = [tier.disk.begin_fetch(seq_id, [key(1), key(2)]) for seq_id in (7, 8)]

    tier.finish()

    assert [len(fetch.awaited) for fetch in fetches] == [0, 0]
    assert tier.disk.counts.read == 2
    assert tier.slots.num_available == 0  # kept until both have started
    tier.disk.end_fetch(7)
    assert tier.slots.num_available == 0
    tier.disk.end_fetch(8)
    assert tier.slots.num_available == 2
    slot = tier.slots.find(key(2).span_hash)
    assert slot is not None
    assert (tier.memory[slot] == 2).all()


def test_a_job_waits_for_the_copies_that_it_depends_on(tmp_path: Path) -> None:
    tier, are_made = Tier(tmp_path / "spans"), Event()
    tier.store(1)

    tier.disk.submit(lambda: assert_set(are_made))
    tier.memory[:] = 9  # the copy arrives
    are_made.set()
    tier.finish()
    again = Tier(tmp_path / "spans")
    again.disk.begin_fetch(7, [key(1)])
    again.finish()

    slot = again.slots.find(key(1).span_hash)
    assert slot is not None
    assert (again.memory[slot] == 9).all()


def assert_set(event: Event) -> None:
    assert event.wait(120)
