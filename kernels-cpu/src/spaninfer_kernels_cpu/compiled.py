"""Numba functions with one signature each, compiled or loaded from disk before they are needed.

Numba keeps machine code on disk per source file, CPU and signature. It looks at the file that
holds the function, not at files whose functions that one calls, so a stamp of all our sources lies
beside its index, and a changed source discards what was compiled from the older ones.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any

STAMP = "spaninfer-sources.sha256"


def make_ready(dispatcher: Any, signature: tuple[Any, ...]) -> None:
    """Compile `dispatcher` for `signature`, or load it, and let it never compile again.

    Arguments of another layout are converted where that is safe (a contiguous array serves where
    the signature says strided); other types are a TypeError instead of seconds of compilation.
    """
    discard_older(Path(dispatcher.stats.cache_path))
    dispatcher.compile(signature)
    dispatcher.disable_compile()


@cache
def discard_older(folder: Path) -> None:
    """Delete Numba's index files in `folder` unless they were made from today's sources."""
    stamp, today = folder / STAMP, _digest_of_sources()
    if stamp.is_file() and stamp.read_text() == today:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for index in folder.glob("*.nbi"):
        index.unlink(missing_ok=True)
    written = folder / f"{STAMP}.{os.getpid()}"
    written.write_text(today)
    written.replace(stamp)


@cache
def _digest_of_sources() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
