"""The disk tier: its capacity, and failures of the disk."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from setting_clock import SetClock
from spaninfer_engine.cache.disk_tier import DiskTier
from spaninfer_engine.cache.host_slots import HostSlots
from spaninfer_engine.cache.span_files import SpanFiles, SpanKey
from spaninfer_engine.cache.span_transfer import SpanTransfer
from spaninfer_engine.cache.ttl import FOREVER, TimeToLive

FILE_BYTES = 32 + 16  # header and span


class Tier:
    """A disk tier under a folder, with slots of one group."""

    def __init__(
        self,
        folder: Path,
        *,
        num_slots: int = 8,
        num_files: int = 100,
        ttl: TimeToLive = FOREVER,
    ) -> None:
        files = SpanFiles.open(folder)
        self.memory = np.zeros((num_slots, 16), np.uint8)
        self.slots = HostSlots(num_slots)
        self.transfer = SpanTransfer(files, [self.memory])
        limit_bytes = num_files * FILE_BYTES
        self.disk = DiskTier(self.transfer, [self.slots], files.listing(), limit_bytes, ttl)
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

    def has(self, number: int) -> bool:
        """Return True if the tier knows a file of this span."""
        return self.disk.has(0, key(number).span_hash)

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


def age(folder: Path, by_s: float, *numbers: int) -> None:
    """Set the times of spans' files back."""
    for number in numbers:
        path = folder / key(number).file_name
        used_s = path.stat().st_mtime - by_s
        os.utime(path, (used_s, used_s))


def test_files_unused_for_their_time_to_live_are_removed_at_the_next_start(
    tmp_path: Path,
) -> None:
    first = Tier(tmp_path)
    first.store(1, 2, 3)
    first.finish()
    age(tmp_path, 3600, 1, 3)

    again = Tier(tmp_path, ttl=TimeToLive(1800))

    assert [again.disk.has(0, key(number).span_hash) for number in (1, 2, 3)] == [
        False,
        True,
        False,
    ]
    again.finish()
    assert again.on_disk == {2}
    assert (again.disk.counts.expired, again.disk.num_bytes) == (2, FILE_BYTES)


def test_a_file_expires_after_its_last_use_and_not_after_it_was_written(tmp_path: Path) -> None:
    clock = SetClock()
    tier = Tier(tmp_path, ttl=TimeToLive(10, clock))
    tier.store(1, 2)
    tier.finish()
    clock.pass_s(6)
    tier.disk.touch(key(1))
    assert tier.disk.time_left_s == 4
    clock.pass_s(4)

    tier.disk.expire()

    assert [tier.has(number) for number in (1, 2)] == [True, False]
    assert tier.disk.counts.expired == 1
    assert tier.disk.time_left_s == 6


def test_a_use_renews_the_time_that_the_next_start_goes_by(tmp_path: Path) -> None:
    first = Tier(tmp_path)
    first.store(1, 2)
    first.finish()
    age(tmp_path, 1000, 1, 2)
    using = Tier(tmp_path, ttl=TimeToLive(1800))
    using.disk.touch(key(1))
    using.finish()
    age(tmp_path, 1000, 1, 2)

    again = Tier(tmp_path, ttl=TimeToLive(1800))
    again.finish()

    assert again.on_disk == {1}


def test_a_span_that_was_removed_by_another_engine_is_renewed_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Tier(tmp_path)
    first.store(1)
    first.finish()
    age(tmp_path, 1000, 1)
    tier = Tier(tmp_path, ttl=TimeToLive(1800))
    (tmp_path / key(1).file_name).unlink()

    tier.disk.touch(key(1))
    tier.finish()

    assert not caplog.records


def test_a_file_of_the_future_expires_as_if_it_were_used_at_the_start(tmp_path: Path) -> None:
    first = Tier(tmp_path)
    first.store(1)
    first.finish()
    age(tmp_path, -1e6, 1)
    clock = SetClock()
    tier = Tier(tmp_path, ttl=TimeToLive(10, clock))

    clock.pass_s(10)
    tier.disk.expire()
    tier.finish()

    assert tier.on_disk == set()


def test_a_span_that_expired_is_written_again_when_it_is_stored_again(tmp_path: Path) -> None:
    clock = SetClock()
    tier = Tier(tmp_path, ttl=TimeToLive(10, clock))
    tier.store(1)
    tier.finish()
    clock.pass_s(5)
    again = Tier(tmp_path, ttl=TimeToLive(10, clock))
    clock.pass_s(10)

    again.disk.expire()
    assert not again.has(1)
    again.store(1)
    again.finish()

    assert again.on_disk == {1}
    assert again.has(1)
