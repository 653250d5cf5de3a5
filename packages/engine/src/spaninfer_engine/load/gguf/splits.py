"""A GGUF model in several files: NAME-00001-of-00003.gguf and the others beside it.

The first has all metadata, each has some of the tensors.
"""

from __future__ import annotations

import re
from pathlib import Path

from spaninfer_engine.errors import CheckpointError, ConfigError, shown
from spaninfer_engine.load.gguf.metadata import Metadata

_FIRST = re.compile(r"(.+)-00001-of-(\d{5})")


def files_of(path: Path, metadata: Metadata) -> list[Path]:
    """Return all files of the model that a file begins.

    ConfigError for a file that is not the first, CheckpointError where one is missing.
    """
    count, number = (metadata.get(f"split.{key}", 0) for key in ("count", "no"))
    for key, value in (("split.count", count), ("split.no", number)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise CheckpointError(f"{path}: {key} is {shown(value)}; it must be 0 or more")
    if count <= 1:
        return [path]
    if number:
        raise ConfigError(
            f"{path} is file {number + 1} of {count} of a model; give the first, which ends in "
            f"-00001-of-{count:05}.gguf"
        )
    found = _FIRST.fullmatch(path.stem)
    if found is None or int(found[2]) != count:
        raise CheckpointError(
            f"{path} is the first of {count} files of a model, so that its name must end in "
            f"-00001-of-{count:05}.gguf, as it was published"
        )
    files = [
        path.with_name(f"{found[1]}-{each:05}-of-{count:05}.gguf") for each in range(1, count + 1)
    ]
    for each in files:
        if not each.is_file():
            raise CheckpointError(
                f"{path} is the first of {count} files of a model, and {each.name} is not beside "
                "it; download it, too"
            )
    return files
