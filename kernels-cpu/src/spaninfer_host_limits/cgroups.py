"""The control groups that hold for this process, as folders with the files of their limits (Linux).

A limit holds for all that is inside of its group, so every one on the way to the root counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")


def cgroup_folders(controller: str, own: str | None = None, root: Path = ROOT) -> Iterator[Path]:
    """Yield the folders, which need not be there, of groups that may limit "cpu" or "memory".

    Those of version 2, and of version 1 with its tree for each controller. `own` is the text of
    /proc/self/cgroup, `root` where the trees are mounted. A container may see its own group as the
    root of what is mounted, yet be given its path on the host: the root is always among them.
    """
    text = (text_of(OWN) or "") if own is None else own
    trees = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    paths = [path for _, kinds, path in trees if not kinds or controller in kinds.split(",")]
    for path in paths or ["/"]:
        place = PurePosixPath(path.lstrip("/"))
        for part in (place, *place.parents):
            yield from (root / part, root / controller / part)


def text_of(path: Path) -> str | None:
    """Return what a file says; None where there is none that may be read."""
    try:
        return path.read_text()
    except OSError:
        return None
