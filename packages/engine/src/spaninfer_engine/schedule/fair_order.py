"""Fair ordering of requests: clients that wait get equal shares of the engine."""

from __future__ import annotations

from spaninfer_engine.schedule.policy import fair_start

_FEW = 1000  # clients are remembered, even if none of their requests waits any more


class FairOrder:
    """The last fair start of each client; to be used under a lock."""

    def __init__(self) -> None:
        self._last_s: dict[str, float] = {}

    def take(self, client: str, prompt_len: int, now: float) -> float:
        """Return the fair start of a client's next request, which arrives now."""
        if len(self._last_s) > _FEW:
            self._last_s = {name: last for name, last in self._last_s.items() if last > now}
        found = fair_start(now, prompt_len, self._last_s.get(client, 0.0))
        self._last_s[client] = found
        return found
