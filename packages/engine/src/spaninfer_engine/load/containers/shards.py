"""Several files that hold the tensors of one model, with an index or without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.json_file import read_json
from spaninfer_engine.load.tensors.reader import Entry, EntryReader

ReadShard: TypeAlias = Callable[[Path], Mapping[str, Entry]]


def open_shards(paths: Sequence[Path], read: ReadShard) -> EntryReader:
    """One reader over all shards; CheckpointError if two of them hold the same tensor."""
    entries: dict[str, Entry] = {}
    home: dict[str, Path] = {}
    for path in paths:
        for name, entry in read(path).items():
            if name in entries:
                raise CheckpointError(
                    f"tensor {name!r} is in both {home[name]} and {path}; keep one of the files"
                )
            entries[name], home[name] = entry, path
    return EntryReader(str(paths[0].parent), entries, home)


def open_index(index: Path, read: ReadShard) -> EntryReader:
    """A reader over the shards that a `*.index.json` names."""
    weight_map = _read_weight_map(index)
    shards = sorted(set(weight_map.values()))
    paths = [index.parent / shard for shard in shards]
    for path in paths:
        if not path.is_file():
            raise CheckpointError(
                f"{index} names {path.name}, which is not there; download the shard again"
            )
    reader = open_shards(paths, read)
    missing = sorted(weight_map.keys() - reader.names)
    if missing:
        name = missing[0]
        raise CheckpointError(
            f"{index} places {name!r} in {weight_map[name]}, which does not hold it"
            + (f" (and {len(missing) - 1} more like it)" if len(missing) > 1 else "")
        )
    return reader


def _read_weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map names no tensor")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(
                f"{index}: {name!r} lies in {shard!r}; only file names in the same folder are read"
            )
    return weight_map
