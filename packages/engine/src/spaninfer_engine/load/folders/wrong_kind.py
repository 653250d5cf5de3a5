"""Files and folders that are something else than the model they are taken for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from spaninfer_engine.errors import CheckpointError, ConfigError

_BEGINNING = 512  # bytes that tell what a file is
_LFS = b"version https://git-lfs"
_PAGES = (b"<!doctype html", b"<html", b"<?xml")
_LARGE = (
    *("*.safetensors", "*.gguf", "*.bin", "*.pt"),
    *("tokenizer.json", "tokenizer.model", "vocab.json", "*.tiktoken"),
)
_SMALL = ("config.json", "generation_config.json", "tokenizer_config.json", "*.index.json")


def refuse_stand_ins(paths: Iterable[Path]) -> None:
    """Raise CheckpointError for files that stand where others should be.

    Git-lfs pointers, web pages saved under a file's name, links to what is not there; and pipes,
    which wait for a writer when they are opened.
    """
    for path in paths:
        if path.is_symlink() and not path.exists():
            raise CheckpointError(
                f"{path} is a link to {path.readlink()}, which does not exist: the download was "
                "not finished, or its cache was cleared; fetch the model again with `hf download "
                "ORG/NAME`"
            )
        if not path.is_file():
            raise CheckpointError(
                f"{path} is a pipe, a socket or a device, not a file; put the model's file there"
            )
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING).lstrip()
        if beginning.startswith(_LFS):
            raise CheckpointError(
                f"{path} is a git-lfs pointer, not the file itself; run `git lfs pull` in "
                f"{path.parent}, or fetch the model with `spaninfer pull ORG/NAME`"
            )
        if beginning.lower().startswith(_PAGES):
            raise CheckpointError(
                f"{path} is a web page, saved in place of the file: the download needed a login or "
                "another address; fetch it again with `hf download ORG/NAME`"
            )


def model_files(folder: Path) -> list[Path]:
    """The files of a folder that loading looks at, as far as they can be something else."""
    found = [path for pattern in (*_SMALL, *_LARGE) for path in sorted(folder.glob(pattern))]
    return [path for path in found if not path.is_dir()]


def refuse_folder(folder: Path) -> None:
    """Raise ConfigError for a folder without config.json, or without weights of its own.

    Says what it is instead, where that can be seen.
    """
    adapter = folder / "adapter_config.json"
    whole = [path for path in folder.glob("*.safetensors") if not _is_adapter(path)]
    if adapter.is_file() and not whole:
        raise ConfigError(
            f"{folder} is an adapter{_base(adapter)}, not a whole model; adapters are not applied "
            "here: merge it into its base (merge_and_unload() of PEFT, then save_pretrained()) and "
            "give that folder"
        )
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    if ggufs and not whole:
        raise ConfigError(
            f"{folder} holds GGUF files; give one of them, as in {folder / ggufs[0]}: "
            f"{listed(ggufs)}"
        )
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{folder} has no config.json; it holds "
            f"{listed(sorted(path.name for path in folder.iterdir()))}; a model folder has "
            "config.json and *.safetensors"
        )


def no_weights(folder: Path) -> CheckpointError:
    """The error about a folder without weights, with the way out of pickles of other names."""
    pickled = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt*"))
    names = sorted(path.name for path in folder.iterdir())
    hint = (
        f"{pickled[0].name} may be a pickle of weights; tensors are read from pytorch_model*.bin, "
        "and nothing of them is executed: rename it if it is one, or save the model as safetensors"
        if pickled
        else f"it holds {listed(names)}; fetch the weights, too: `hf download ORG/NAME`"
    )
    return CheckpointError(f"{folder} has no *.safetensors; {hint}")


def listed(names: list[str], limit: int = 8) -> str:
    """Names as a text, the first few of them."""
    shown = ", ".join(names[:limit]) or "nothing"
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _is_adapter(path: Path) -> bool:
    return path.name.startswith("adapter_")


def _base(adapter: Path) -> str:
    """Return the base model that an adapter names, as part of a sentence."""
    try:
        said = json.loads(adapter.read_bytes())
    except ValueError:
        return ""
    base = said.get("base_model_name_or_path") if isinstance(said, dict) else None
    return f" of {base}" if isinstance(base, str) else ""
