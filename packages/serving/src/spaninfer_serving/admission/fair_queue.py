"""A queue that is fair among clients: each gets an equal share, by cost, of what is taken."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Client(NamedTuple):
    """The sender of a request: accounts share equally, then the connections of an account."""

    account: str  # an API key, or an address
    connection: str


class FairQueue(Generic[T]):
    """Items by client, taken by earliest virtual finish time.

    Virtual start times are those of start-time fair queueing (Goyal et al., 1996), the order is
    that of finish times, as in self-clocked fair queueing. So cheap items of one client overtake
    the expensive ones of another, and no client waits for ever.
    """

    def __init__(self) -> None:
        self._accounts = _VirtualClock()
        self._connections: dict[str, _VirtualClock] = {}  # by account
        self._items: dict[Client, deque[T]] = {}

    def __len__(self) -> int:
        """Return how many items wait."""
        return len(self._accounts)

    @property
    def next_account(self) -> str:
        """The account whose item is taken next; IndexError where there is none."""
        return self._accounts.next_owner

    def put(self, client: Client, cost: int, item: T) -> None:
        """Add an item; the smaller its cost, the sooner its client's turn comes."""
        self._accounts.put(client.account, cost)
        self._connections.setdefault(client.account, _VirtualClock()).put(client.connection, cost)
        self._items.setdefault(client, deque()).append(item)

    def take(self) -> T:
        """Return the next item; IndexError where there is none."""
        account = self._accounts.take()
        connections = self._connections[account]
        client = Client(account, connections.take())
        items = self._items[client]
        item = items.popleft()
        if not items:
            del self._items[client]
        if not connections:
            del self._connections[account]
        return item


class _VirtualClock:
    """A virtual clock that gives each item put its place in the order.

    A turn begins, in virtual time, where the turn taken last began or where its owner's last one
    ends, whichever is later, and ends by its cost later. The earliest end is taken first.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, float, str]] = []  # end, number, begin, owner
        self._ends: dict[str, float] = {}  # of the last turn of each owner
        self._now = 0.0
        self._number = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_owner(self) -> str:
        return self._heap[0][3]

    def put(self, owner: str, cost: int) -> None:
        begin = max(self._now, self._ends.get(owner, 0.0))
        self._ends[owner] = end = begin + cost
        self._number += 1
        heappush(self._heap, (end, self._number, begin, owner))

    def take(self) -> str:
        _, _, begin, owner = heappop(self._heap)
        self._now = max(self._now, begin)
        if not self._heap:  # none waits, so none has had more than another
            self._ends.clear()
        return owner
