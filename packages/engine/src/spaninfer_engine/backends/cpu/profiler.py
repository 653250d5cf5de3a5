"""A profile of backend cpu: the time of steps by operator."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from spaninfer_kernels_cpu import OperatorTimes, operator_times, shared_thread_pool


class OperatorProfiler:
    """Traces the thread pool, and sums up what it ran; of a minute of steps at most."""

    def __init__(self) -> None:
        self._pool, self._traced = shared_thread_pool(), ExitStack()

    def start(self) -> None:
        """Begin with the next step."""
        self._trace = self._traced.enter_context(self._pool.traced())

    def stop(self, folder: Path, name: str) -> Path:
        """Write a file of that name with an object per operator; return its path."""
        self._traced.close()
        operators = [self._said_of(times) for times in operator_times(self._trace)]
        path = folder / f"{name}.operators.json"
        path.write_text(json.dumps(operators, indent=1))
        return path

    def _said_of(self, times: OperatorTimes) -> dict[str, str | int | float]:
        elapsed = max(1, int(times.elapsed.sum()))
        return {
            "operator": times.operator,
            "steps": len(times.elapsed),
            "calls_per_step": times.calls,
            "us_per_step": round(elapsed / len(times.elapsed) / 1e3, 1),
            "busy": round(int(times.busy.sum()) / elapsed / self._pool.num_threads, 3),
            "bytes_of_weights": times.num_bytes,
        }
