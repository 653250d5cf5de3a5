"""Alarms that are rung in the loop of the tasks that they wake."""

from __future__ import annotations

from collections.abc import Callable

from spaninfer_engine.serving import Alarm


class LoopWakeups:
    """Wakes tasks of the loop in which it is called."""

    def waker(self, alarm: Alarm) -> Callable[[], None]:
        """Return what rings an alarm."""

        def ring() -> None:
            if not alarm.is_rung:  # else its reader looks at everything once it has woken
                alarm.is_rung = True
                alarm.wake()

        return ring
