"""A gate in front of the event loop: a burst enters a piece at a time.

The event loop runs all ready callbacks before it polls for I/O. Of 256 requests that arrive
together, each takes 2 ms of it in several pieces, and a stream whose next token arrived meanwhile
waited for all of them at each of its own pieces. So one request enters per round of the loop, and
work under way proceeds in between. Then each round lasts as long as the work for one request, and
the next one takes eight of them to the engine; so where several accounts send requests, an account
rests for some rounds, which are short unless another one enters.
"""

from __future__ import annotations

import asyncio

from spaninfer_serving.admission.fair_queue import Client, FairQueue

# While somebody waits all the time, a pause grows by a tenth at each turn, up to four times: a page
# of ten files still comes in a sixth of a second, but who asks for it without end gets 25 turns a
# second. With 100 they took 0.1 of the 0.34 CPUs that the event loop had under attack.
GROWTH = 1.1
MAX_GROWTH = 4.0

# Rounds per entrance of an account, for so long after one has entered behind another.
SHARED_ROUNDS = 4
SHARED_S = 1.0


class AdmissionGate:
    """Lets one client's work in per round of the event loop, or per pause; fair among clients.

    Where several accounts share the loop, each enters in one of `SHARED_ROUNDS`. A pause lasts
    `pause_s`, and longer the longer somebody waits.
    To be used by the tasks of one event loop; where that has ended, by those of the next.
    """

    def __init__(self, pause_s: float = 0.0) -> None:
        self._pause_s, self._growth = pause_s, 1.0
        self._waiting: FairQueue[tuple[asyncio.Future[None], Client]] = FairQueue()
        self._shut_by: asyncio.AbstractEventLoop | None = None  # in whose round somebody entered
        self._account: str | None = None  # that entered last
        self._is_resting = False  # are others than that account let in?
        self._resting: asyncio.Handle | None = None
        self._shared_until_s = 0.0

    async def enter(self, client: Client, cost: int = 1) -> None:
        """Wait for the client's turn: the earliest virtual finish time goes first (FairQueue)."""
        loop = asyncio.get_running_loop()
        is_rest_of_another = self._is_resting and client.account != self._account
        if self._shut_by is loop and not is_rest_of_another:
            turn = loop.create_future()
            self._waiting.put(client, cost, (turn, client))
            await turn
            return
        if self._shut_by not in (None, loop):  # a loop that will not open it any more
            self._waiting = FairQueue()
        self._shut(loop, client)

    def _shut(self, loop: asyncio.AbstractEventLoop, client: Client) -> None:
        self._shut_by = loop
        if self._pause_s:
            loop.call_later(self._pause_s * self._growth, self._open, loop)
            return
        now = loop.time()
        if self._account not in (None, client.account):
            self._shared_until_s = now + SHARED_S
        self._account, self._is_resting = client.account, False
        if self._resting is not None:
            self._resting.cancel()
        rounds = SHARED_ROUNDS if now < self._shared_until_s else 1
        self._resting = loop.call_soon(self._rest, loop, rounds)

    def _rest(self, loop: asyncio.AbstractEventLoop, rounds: int) -> None:
        """Open behind that many rounds, this one among them, or for another account."""
        if rounds == 1 or (len(self._waiting) and self._waiting.next_account != self._account):
            self._is_resting = False
            self._open(loop)
        else:
            self._is_resting = True
            self._resting = loop.call_soon(self._rest, loop, rounds - 1)

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the next one in who still waits."""
        self._shut_by = None
        self._growth = min(self._growth * GROWTH, MAX_GROWTH) if len(self._waiting) else 1.0
        while len(self._waiting) and self._shut_by is None:
            turn, client = self._waiting.take()
            if not turn.done():  # else its client has left
                turn.set_result(None)
                self._shut(loop, client)
