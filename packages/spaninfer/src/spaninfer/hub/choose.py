"""The choice of a repository's files that the engine reads. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from spaninfer_engine import ConfigError

from spaninfer.hub.name import HubName

# Beside the weights: config, tokenizer, chat templates, and the settings of sentence-transformers
# and of processors for images and audio.
_SMALL = (
    *("*.json", "*.jinja", "*.tiktoken", "tokenizer*.model", "merges.txt", "vocab.txt"),
    "additional_chat_templates/*.jinja",
    "[0-9]_*/config.json",
)
_WEIGHTS = ("*.safetensors", "[0-9]_*/model.safetensors")
_PYTORCH = ("pytorch_model*.bin",)  # where there are no safetensors
_OTHER_FORM = "consolidated*.safetensors"  # Mistral's own names beside those of transformers
_SPLIT = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True, slots=True)
class Choice:
    """The files to fetch: small ones first, so that a folder with its weights is whole."""

    small: tuple[str, ...]
    weights: tuple[str, ...]

    @property
    def gguf(self) -> str | None:
        """The GGUF file that is the model, None where it is a folder."""
        return self.weights[0] if not self.small else None


def choose(name: HubName, files: Collection[str]) -> Choice:
    """Return the files of a repository that are the model of this name.

    Raises ConfigError where there are none, or several GGUF files and no tag.
    """
    gguf = sorted(file for file in files if file.lower().endswith(".gguf"))
    weights = _matching(files, _WEIGHTS) or _matching(files, _PYTORCH)
    if any(not fnmatchcase(file, _OTHER_FORM) for file in weights):
        weights = tuple(file for file in weights if not fnmatchcase(file, _OTHER_FORM))
    if name.tag is None and weights and "config.json" in files:
        return Choice(_matching(files, _SMALL), weights)
    if not gguf:
        raise ConfigError(
            f"{name.repo} has no {'GGUF files' if name.tag else 'config.json with weights'}; "
            f"it has {_some(files)}"
        )
    return Choice((), (_one_gguf(name, gguf),))


def _one_gguf(name: HubName, gguf: list[str]) -> str:
    """Return the GGUF file that a tag picks, or the only one."""
    tags = {file: _tag(file) for file in gguf}
    ending = (name.tag or "").lower()
    chosen = [file for file in gguf if tags[file].lower().endswith(ending)]
    exact = [file for file in chosen if re.split(r"[-.]", tags[file].lower())[-1] == ending]
    chosen = exact or chosen
    if len(chosen) != 1:
        known = ", ".join(sorted({re.split(r"[-.]", tag)[-1] for tag in tags.values()}))
        why = f"no GGUF file with {name.tag}" if name.tag and not chosen else "several GGUF files"
        raise ConfigError(
            f"{name.repo} has {why}; pick one by its ending: {name.repo}:TAG with {known}"
        )
    if _SPLIT.search(chosen[0].removesuffix(".gguf")):
        raise ConfigError(
            f"{chosen[0]} of {name.repo} is one part of several, and split GGUF files cannot be "
            "read; join them with llama.cpp's `llama-gguf-split --merge`"
        )
    return chosen[0]


def _tag(file: str) -> str:
    """Return the name of a GGUF file without what says which part of several it is."""
    return _SPLIT.sub("", re.sub(r"(?i)\.gguf$", "", file.rpartition("/")[2]))


def _matching(files: Collection[str], patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files that match; a pattern without a folder matches none in one."""
    return tuple(
        file
        for file in sorted(files)
        if any(
            fnmatchcase(file, pattern) and file.count("/") == pattern.count("/")
            for pattern in patterns
        )
    )


def _some(files: Collection[str]) -> str:
    """Return a few names of files for a message."""
    shown = sorted(files)[:8]
    return (", ".join(shown) or "no files") + (", …" if len(files) > len(shown) else "")
