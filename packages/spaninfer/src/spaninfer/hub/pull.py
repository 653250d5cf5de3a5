"""Downloads from the Hugging Face hub, through huggingface_hub: verified, cached, and asked for
again from where a connection broke.

The variables of that library hold: HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE.
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from json import JSONDecodeError, loads
from pathlib import Path
from typing import TYPE_CHECKING

from spaninfer_engine import ConfigError
from spaninfer_engine.tools import cache_folder, find_model

from spaninfer.hub.choose import choose
from spaninfer.hub.name import HubName

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TIMEOUT_S = 15.0  # for a listing; files have the library's own limits


def locate_or_pull(model: str, *, with_weights: bool = True) -> str | Path:
    """Return the path of a model, fetching it if its name is one of a hub and it is not here.

    Without `with_weights`, all but the weights is fetched. A path, a bundled model and a model that
    is whole in the cache are returned as they are, and the network is not used. Raises ConfigError
    where a download fails.
    """
    name = HubName.parse(model)
    if name is None or Path(model).exists():
        return model
    here = find_cached(name)
    if here is None:
        return pull(name, with_weights=with_weights)
    return model if name.is_plain else here


def find_cached(name: HubName) -> Path | None:
    """Return the folder, or the GGUF file, of a model that is whole in the cache; else None."""
    if name.is_plain:
        folder = find_model(name.repo)
    else:
        models = cache_folder() / f"models--{name.repo.replace('/', '--')}"
        ref = models / "refs" / name.revision
        commit = ref.read_text().strip() if ref.is_file() else name.revision
        folder = models / "snapshots" / commit
    if folder is None or not folder.is_dir():
        return None
    files = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
    try:
        choice = choose(name, files)
    except ConfigError:
        return None
    if choice.gguf is not None:
        return folder / choice.gguf
    return folder if _shards(folder) <= set(files) else None


def pull(name: HubName, *, with_weights: bool = True) -> Path:
    """Fetch what the engine reads of a model; return its folder in the cache, or its GGUF file.

    Without `with_weights`, the small files alone; a GGUF file has them in it, and is fetched.
    Files that are there are not fetched again; whether one that was begun is continued by the next
    call depends on the version of the library. Raises ConfigError, with the way out, where the
    model or the network is not there, where it is gated, and where the disk is too small.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        sizes = _sizes(HfApi(endpoint=_hub()), name)
        choice = choose(name, sizes)
        wanted = [choice.small, choice.weights]  # weights last: with them, it is whole
        if not with_weights and choice.gguf is None:
            wanted.pop()
        download = _Download(name, {file: sizes[file] for files in wanted for file in files})
        download.check_room()
        with download.telling_of_a_full_disk():
            for files in wanted:
                patterns = [glob.escape(file) for file in files]
                if patterns:
                    folder = snapshot_download(
                        name.repo,
                        revision=name.revision,
                        cache_dir=cache_folder(),
                        endpoint=_hub(),
                        allow_patterns=patterns,
                    )
    except ConfigError:
        raise
    except Exception as error:  # the library's, and those of the HTTP client it happens to use
        raise ConfigError(_sentence(name, error)) from error
    return Path(folder) / choice.gguf if choice.gguf else Path(folder)


def _hub() -> str:
    """Return the address of the hub: HF_ENDPOINT, as it is now."""
    hub = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    if not hub.startswith(("http://", "https://")):
        raise ConfigError(
            f"HF_ENDPOINT is {hub!r}, which is no address of a hub; set it to one that begins with "
            "https:// or http://, or unset it"
        )
    return hub


def _sizes(api: HfApi, name: HubName) -> Mapping[str, int]:
    """Return the files of a revision with their bytes."""
    info = api.model_info(name.repo, revision=name.revision, files_metadata=True, timeout=TIMEOUT_S)
    return {file.rfilename: file.size or 0 for file in info.siblings or ()}


@dataclass(frozen=True, slots=True)
class _Download:
    """The files that a model is to have in the cache, with their bytes; 0: the hub does not say."""

    name: HubName
    sizes: Mapping[str, int]

    def check_room(self) -> None:
        """Raise ConfigError where the disk of the cache has no room for what is missing."""
        if self._missing_bytes() > _free_bytes():
            raise ConfigError(self._too_small())

    @contextmanager
    def telling_of_a_full_disk(self) -> Iterator[None]:
        """Raise ConfigError for a disk that becomes full inside of the block.

        The library keeps complete files alone, so a later call goes on with the others.
        """
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ConfigError(f"{self._too_small()}; complete files are kept") from error

    def _too_small(self) -> str:
        missing, free = self._missing_bytes(), _free_bytes()
        needs = _size(missing) if missing > free else f"more than {_size(free)}"
        return (
            f"{self.name} takes {needs}, and {_size(free)} are free in {cache_folder()}; make room "
            "(`spaninfer list` shows what is there, `spaninfer remove NAME` deletes it), or set "
            "HF_HOME to a larger disk, and repeat the command"
        )

    def _missing_bytes(self) -> int:
        """Return the bytes of the files that are not in the cache."""
        from huggingface_hub import try_to_load_from_cache

        repo, cache, revision = self.name.repo, cache_folder(), self.name.revision
        return sum(
            num_bytes
            for file, num_bytes in self.sizes.items()
            if not isinstance(try_to_load_from_cache(repo, file, cache, revision), str)
        )


def _free_bytes() -> int:
    """Return what is free on the disk of the cache."""
    folder = cache_folder()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB ({num_bytes:,} bytes)"


def _shards(folder: Path) -> set[str]:
    """Return the files of weights that an index names."""
    indices = [folder / f"{name}.index.json" for name in ("model.safetensors", "pytorch_model.bin")]
    index = next((each for each in indices if each.is_file()), None)
    try:
        return set() if index is None else set(loads(index.read_text())["weight_map"].values())
    except (JSONDecodeError, KeyError, AttributeError, TypeError):
        return {"another index"}  # damaged: fetched again


def _sentence(name: HubName, error: Exception) -> str:
    """Return what went wrong and the way out."""
    from huggingface_hub import errors

    hub = _hub()
    match error:
        case errors.GatedRepoError():
            return (
                f"{name.repo} is gated: accept its terms at {hub}/{name.repo}, then give a token "
                "that may read it, by `hf auth login` or HF_TOKEN"
            )
        case errors.RepositoryNotFoundError():
            return (
                f"there is no model {name.repo} at {hub} that can be read without a token; check "
                "the name, or give a token, by `hf auth login` or HF_TOKEN"
            )
        case errors.RevisionNotFoundError():
            return f"{name.repo} has no branch, tag or commit {name.revision!r} at {hub}"
        case errors.OfflineModeIsEnabled():
            return (
                f"{name} is missing or incomplete in the cache {cache_folder()}, and "
                "HF_HUB_OFFLINE forbids downloads; unset it, or give the path of a model"
            )
        case OSError() if error.filename is not None:  # of a file here, not of a connection
            return f"{cache_folder()} cannot be written ({error}); set HF_HOME to another folder"
    said = " ".join(str(error).split())[:300]
    if isinstance(error, OSError) or "Connect" in type(error).__name__:
        return (
            f"{hub} cannot be reached ({said}), and {name} is missing or incomplete in the cache "
            f"{cache_folder()}; check the network, set HTTPS_PROXY or HF_ENDPOINT (a mirror), or "
            "give the path of a folder; complete files are kept"
        )
    return (
        f"{name} could not be fetched from {hub}: {type(error).__name__}: {said}; "
        "complete files are kept, repeat the command to fetch the rest"
    )
