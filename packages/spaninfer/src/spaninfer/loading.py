"""Progress while a model loads: bars in a terminal, at most a line in a log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from spaninfer.unwritable import Diagnostics

PATIENCE_S = 2.0  # cached kernels are loaded in less
COMPILES = "preparing kernels; the first start on a machine compiles them"


class LoadingBar:
    """One progress bar per stage of loading; those of one unit pulse until it is finished."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Note that `done` of `total` units of a stage are finished."""
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=None)
        is_known = total > 1 or done == total
        self._progress.update(self._tasks[stage], completed=done, total=total if is_known else None)


class LoadingLog:
    """A line, once kernels have taken longer than those of a cache do."""

    def __init__(self, console: Diagnostics) -> None:
        self._timer = threading.Timer(PATIENCE_S, console.print, (COMPILES,))
        self._timer.daemon = True

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Note that `done` of `total` units of a stage are finished."""
        if stage != "kernels":
            return
        if done == total:
            self.close()
        elif self._timer.ident is None:
            self._timer.start()

    def close(self) -> None:
        """Say nothing any more."""
        self._timer.cancel()


@contextmanager
def loading() -> Iterator[LoadingBar | LoadingLog]:
    """Show progress while a model loads."""
    console = Diagnostics()
    if not console.is_terminal:
        with closing(LoadingLog(console)) as log:
            yield log
        return
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    with progress:
        yield LoadingBar(progress)
