"""Models that lie in the local cache of the Hugging Face hub, found without a network.

A model ORG/NAME lies in `models--ORG--NAME` there: `refs/main` holds the name of a folder under
`snapshots`, which holds the files. The layout is documented by huggingface_hub, which is not needed
to read it.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from spaninfer_engine.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")  # gpt2, or ORG/NAME
_PREFIX = "models--"


def whole_path(path: str | Path) -> Path:
    """Return a path with its `~` replaced. ConfigError where that user has no home."""
    try:
        return Path(path).expanduser()
    except RuntimeError as homeless:
        raise ConfigError(
            f"{path}: that user has no home folder here; write the path without ~"
        ) from homeless


def find_model(model: str | Path) -> Path | None:
    """The file or folder that a path, or a name in the cache, stands for; None where none is.

    ConfigError for a folder of the cache that holds no model, or several.
    """
    path = whole_path(model)
    if path.is_dir() and path.name.startswith(_PREFIX) and (path / "snapshots").is_dir():
        return _snapshot(path)
    if path.exists():
        return path
    if not _NAME.fullmatch(str(model)):
        return None
    folder = cache_folder() / (_PREFIX + str(model).replace("/", "--"))
    return _snapshot(folder) if (folder / "snapshots").is_dir() else None


def model_name(path: Path) -> str:
    """The name of a model: its file's or folder's; ORG/NAME for a snapshot in the cache."""
    if path.is_file():
        return path.stem
    whole = path.absolute()
    if whole.parent.name == "snapshots" and whole.parent.parent.name.startswith(_PREFIX):
        return whole.parent.parent.name.removeprefix(_PREFIX).replace("--", "/")
    return path.resolve().name


def where_to_get(model: str | Path) -> str:
    """The way to a model that is not there, as the end of a message."""
    name = str(model)
    if not _NAME.fullmatch(name):
        return f"give the path of a model{_neighbour(Path(name))}, or ORG/NAME of the hub"
    if "/" not in name:
        whole = [each for each in cached_models() if each.rpartition("/")[2] == name]
        there = f"the cache has {', '.join(whole)}" if whole else "Qwen/Qwen3-0.6B, for example"
        return f"models of the Hugging Face hub are named with their owner, ORG/NAME ({there})"
    near = difflib.get_close_matches(name, cached_models(), n=2)
    there = f" (there is {', '.join(near)})" if near else ""
    return (
        f"an engine downloads nothing, and {name} is not in the cache {cache_folder()}{there}; "
        f"`spaninfer pull {name}` or `hf download {name}` puts it there, where it is found by this "
        "name"
    )


def _neighbour(path: Path) -> str:
    """The end of a message about a missing path: its folder if that is missing, or a near name."""
    folder = path.expanduser().absolute().parent
    if not folder.is_dir():
        return f" ({folder} is not there either)"
    near = difflib.get_close_matches(path.name, [each.name for each in folder.iterdir()], n=1)
    return f" (there is {folder / near[0]})" if near else ""


def cached_models() -> list[str]:
    """The names of all models in the cache."""
    folders = sorted(cache_folder().glob(f"{_PREFIX}*"))
    return [folder.name.removeprefix(_PREFIX).replace("--", "/") for folder in folders]


def cache_folder() -> Path:
    """The folder of the cache, where the environment says it is."""
    if said := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(said).expanduser()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    home = Path(os.environ.get("HF_HOME") or caches / "huggingface")
    return (home / "hub").expanduser()


def _snapshot(folder: Path) -> Path:
    """The snapshot of a model's folder: the one of `refs/main`, else the only one."""
    main = folder / "refs" / "main"
    revision = main.read_text(encoding="utf-8").strip() if main.is_file() else ""
    snapshots = sorted(each for each in (folder / "snapshots").iterdir() if each.is_dir())
    chosen = [each for each in snapshots if each.name == revision] or snapshots
    if len(chosen) == 1:
        return chosen[0]
    listed = ", ".join(each.name for each in snapshots) or "none"
    name = folder.name.removeprefix(_PREFIX).replace("--", "/")
    raise ConfigError(
        f"{folder} has no snapshot that refs/main names; it has {listed}; give the folder of one, "
        f"or fetch the model again: `hf download {name}`"
    )
