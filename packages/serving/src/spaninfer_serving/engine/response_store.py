"""Responses that are kept for a while, so that a later request can go on from one."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spaninfer_serving.wire.errors import Problem

if TYPE_CHECKING:
    from spaninfer_serving.wire.chat import Message

STORED_BYTES = 1 << 26  # of responses that are kept, and of their conversations
LARGEST = 4  # of these would be too many: one has to cross to another process in one piece
MESSAGE_BYTES = 100  # of memory, beside its JSON


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as JSON, and the conversation up to its end, without instructions: a JSON each."""

    json: bytes
    conversation: tuple[bytes, ...]

    @classmethod
    def new(cls, json: bytes, conversation: Iterable[Message]) -> StoredResponse:
        """Return a response with the messages of its conversation."""
        messages = (each.model_dump_json(exclude_none=True) for each in conversation)
        return cls(json, tuple(each.encode() for each in messages))

    def messages(self) -> list[Message]:
        """Return the conversation."""
        # Who reads it has imported this; an engine behind API servers, which keeps it, has not.
        from spaninfer_serving.wire.chat import Message

        return [Message.model_validate_json(each) for each in self.conversation]

    @property
    def num_bytes(self) -> int:
        """The bytes of all of it."""
        return len(self.json) + sum(map(len, self.conversation))


class ResponseStore:
    """The responses of all accounts, in memory; bounded by number and bytes.

    An account sees only its own. Where there are too many, the account with the most bytes
    loses its oldest, and one that takes more than a quarter of all bytes is not kept. A message of
    several conversations is there once, with the media in it. To be used by the tasks of one event
    loop.
    """

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        """Keep so much at the most; 0 responses: nothing at all."""
        self._max_responses, self._max_bytes = max_responses, max_bytes
        self._accounts: dict[str, OrderedDict[str, StoredResponse]] = {}
        self._bytes: dict[str, int] = {}  # by account
        self._messages: dict[bytes, bytes] = {}  # each by itself
        self._holders: Counter[bytes] = Counter()  # of each message: conversations

    def __len__(self) -> int:
        """Return how many responses are kept."""
        return sum(map(len, self._accounts.values()))

    @property
    def num_bytes(self) -> int:
        """The bytes of all that is kept."""
        return sum(self._bytes.values())

    @property
    def is_open(self) -> bool:
        """True if responses are kept."""
        return self._max_responses > 0

    def get(self, account: str, response_id: str, param: str | None = None) -> StoredResponse:
        """Return a response of an account; Problem 404 where there is none, or none any more."""
        kept = self._accounts.get(account)
        found = None if kept is None else kept.get(response_id)
        if found is None:
            how = (
                f"they are kept in memory, the newest {self._max_responses}, unless store is false"
                if self.is_open
                else "this server keeps none"
            )
            raise Problem(
                404,
                f"there is no response {response_id!r} of this key; {how}; send the whole "
                "conversation as input",
                param=param,
                code="response_not_found",
            )
        return found

    def put(self, account: str, response_id: str, stored: StoredResponse) -> None:
        """Keep a response, and forget what there is no room for any more."""
        if stored.num_bytes * LARGEST > self._max_bytes:
            return
        before = self._bytes.get(account, 0)
        self._bytes[account] = before + len(stored.json) + self._held(stored.conversation)
        shared = tuple(self._messages[each] for each in stored.conversation)
        kept = self._accounts.setdefault(account, OrderedDict())
        kept[response_id] = StoredResponse(stored.json, shared)
        while len(self) > self._max_responses or self.num_bytes > self._max_bytes:
            largest = max(self._bytes, key=self._bytes.__getitem__)
            self._forget(largest, next(iter(self._accounts[largest])))

    def delete(self, account: str, response_id: str) -> None:
        """Forget a response; Problem 404 as in `get`."""
        self.get(account, response_id)
        self._forget(account, response_id)

    def _forget(self, account: str, response_id: str) -> None:
        kept = self._accounts[account]
        stored = kept.pop(response_id)
        self._bytes[account] -= len(stored.json) + self._released(stored.conversation)
        if not kept:
            del self._accounts[account], self._bytes[account]

    def _held(self, conversation: Sequence[bytes]) -> int:
        """Note one more holder of each message; return the bytes of those that had none."""
        fresh = [each for each in dict.fromkeys(conversation) if each not in self._messages]
        self._messages |= {each: each for each in fresh}
        self._holders.update(conversation)
        return sum(map(_weight, fresh))

    def _released(self, conversation: Sequence[bytes]) -> int:
        """Note one holder less of each message; return the bytes of those that have none now."""
        self._holders.subtract(conversation)
        freed = [each for each in dict.fromkeys(conversation) if not self._holders[each]]
        for each in freed:
            del self._holders[each], self._messages[each]
        return sum(map(_weight, freed))


def _weight(message: bytes) -> int:
    return MESSAGE_BYTES + len(message)
