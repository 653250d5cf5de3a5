import logging

import pytest
from spaninfer_serving.http import connection_slots
from spaninfer_serving.http.connection_slots import (
    MAX_CONNECTIONS,
    RESERVED,
    ConnectionSlots,
    provide,
)

resource = pytest.importorskip("resource", reason="Windows limits sockets by memory alone")


class Waiting:
    """A connection that waits for its client."""

    def __init__(self, places):
        self.places, self.is_closed = places, False
        places.waiting[self] = None

    def give_way(self):
        self.is_closed = True
        del self.places.waiting[self]


@pytest.fixture
def soft_limit():
    """What sets the soft limit of open files, for one test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda limit: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_longest_silence_gives_way_and_only_where_all_places_are_taken():
    places = ConnectionSlots(2)
    connections = [Waiting(places) for _ in range(3)]

    for num_taken in (1, 2, 3):
        places.make_room(num_taken)

    assert [each.is_closed for each in connections] == [True, False, False]


def test_the_log_says_once_a_second_how_many_were_closed(monkeypatch, caplog):
    times_s = [50.0, 50.1, 50.9, 51.0, 51.1, 60.0]
    monkeypatch.setattr(connection_slots, "monotonic", iter(times_s).__next__)
    full = ConnectionSlots(0)

    with caplog.at_level(logging.WARNING):
        for _ in times_s:
            Waiting(full)
            full.make_room(1)

    assert [each.args for each in caplog.records] == [(0, 1), (0, 3), (0, 2)]


def test_the_limit_of_open_files_is_raised_as_far_as_the_system_allows(soft_limit):
    soft_limit(100)

    found = provide()

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard or soft > MAX_CONNECTIONS + RESERVED
    assert 0 < found.num <= min(MAX_CONNECTIONS, soft - RESERVED)
