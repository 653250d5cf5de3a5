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
_SPLIT = re.compile(r"-\d{5}-of-(\d{5})$")


@dataclass(frozen=True, slots=True)
class Choice:
    """The files to fetch: small ones first, so that a folder with its weights is whole."""

    small: tuple[str, ...]
    weights: tuple[str, ...]

    @property
    def gguf(self) -> str | None:
        """The GGUF file that is the model, the first of several; None where it is a folder."""
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
    return Choice((), _one_gguf(name, gguf))


def _one_gguf(name: HubName, gguf: list[str]) -> tuple[str, ...]:
    """Return the GGUF file that a tag picks, or the only one; all in order where it is split."""
    models: dict[str, list[str]] = {}
    for file in gguf:
        models.setdefault(_SPLIT.sub("", file[: -len(".gguf")]), []).append(file)
    tags = {model: model.rpartition("/")[2].lower() for model in models}
    ending = (name.tag or "").lower()
    chosen = [model for model in models if tags[model].endswith(ending)]
    exact = [model for model in chosen if re.split(r"[-.]", tags[model])[-1] == ending]
    chosen = exact or chosen
    if len(chosen) != 1:
        known = ", ".join(sorted({re.split(r"[-.]", model)[-1] for model in models}))
        why = f"no GGUF file with {name.tag}" if name.tag and not chosen else "several GGUF files"
        raise ConfigError(
            f"{name.repo} has {why}; pick one by its ending: {name.repo}:TAG with {known}"
        )
    files = models[chosen[0]]
    if (split := _SPLIT.search(files[0][: -len(".gguf")])) and len(files) != int(split[1]):
        raise ConfigError(
            f"{name.repo} has {len(files)} of the {int(split[1])} files of {chosen[0]}"
        )
    return tuple(files)


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
