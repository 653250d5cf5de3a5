"""Models in the hub's local cache: what is there, and removing it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from spaninfer_engine import ConfigError
from spaninfer_engine.tools import cache_folder

from spaninfer.hub.name import HubName

if TYPE_CHECKING:
    from huggingface_hub import HFCacheInfo


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A revision of a model in the cache."""

    repo: str
    revision: str  # the commit
    refs: tuple[str, ...]  # branches and tags that mean it
    size_bytes: int
    modified: datetime


def cached_models() -> tuple[CachedModel, ...]:
    """Return the models in the cache, by name."""
    found = _scan()
    if found is None:
        return ()
    models = [
        CachedModel(
            repo.repo_id,
            revision.commit_hash,
            tuple(sorted(revision.refs)),
            revision.size_on_disk,
            datetime.fromtimestamp(revision.last_modified),
        )
        for repo in found.repos
        if repo.repo_type == "model"
        for revision in repo.revisions
    ]
    return tuple(sorted(models, key=lambda model: (model.repo, model.revision)))


def find_revisions(name: HubName) -> tuple[CachedModel, ...]:
    """Return the revisions of a model in the cache: all of them, or the one that is named.

    Raises ConfigError where there is none.
    """
    models = [model for model in cached_models() if model.repo == name.repo]
    if name.revision != "main":
        models = [model for model in models if _is(model, name.revision)]
    if not models:
        there = ", ".join(sorted({model.repo for model in cached_models()})) or "nothing"
        raise ConfigError(f"{name} is not in the cache {cache_folder()}; there is {there}")
    return tuple(models)


def remove(revisions: Iterable[CachedModel]) -> int:
    """Delete revisions from the cache; return the bytes that this frees."""
    found = _scan()
    assert found is not None, "revisions were found in it"
    plan = found.delete_revisions(*(each.revision for each in revisions))
    plan.execute()
    return plan.expected_freed_size


def _is(model: CachedModel, revision: str) -> bool:
    """Return True if a branch, a tag or the beginning of its commit names a revision."""
    return revision in model.refs or (len(revision) >= 7 and model.revision.startswith(revision))


def _scan() -> HFCacheInfo | None:
    """Return what the hub's library finds in the cache, None where there is no cache."""
    from huggingface_hub import scan_cache_dir

    folder = cache_folder()
    return scan_cache_dir(folder) if folder.is_dir() else None
