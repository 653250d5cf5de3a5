"""A model folder's processor configuration, from the one of three files that has it.

preprocessor_config.json describes images or audio, video_preprocessor_config.json videos;
processor_config.json holds what all share and, as newer versions of transformers write it, the
other two inside. The patch size of a tower may be in config.json alone; so is everything of Qwen-VL
and Qwen-Audio (2023).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spaninfer_multimodal.errors import ConfigError

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProcessorConfig:
    """The settings of each kind of media; an empty mapping where a kind is not described."""

    image: Config
    video: Config
    audio: Config
    shared: Config


def read_config(folder: Path) -> ProcessorConfig:
    """Read the configuration in `folder`; raises ConfigError where there is none."""
    shared = _read(folder / "processor_config.json")
    towers = _read(folder / "config.json")
    plain = _read(folder / "preprocessor_config.json") or _first_qwen(towers)
    is_audio = "feature_extractor_type" in plain and "image_mean" not in plain
    image = shared.get("image_processor") or ({} if is_audio else plain)
    config = ProcessorConfig(
        image=image,
        video=_read(folder / "video_preprocessor_config.json") or shared.get("video_processor", {}),
        audio=shared.get("feature_extractor") or (plain if is_audio else {}),
        shared={**_of_model(towers), **plain, **shared},
    )
    if not (config.image or config.video or config.audio):
        raise ConfigError(f"{folder} has no preprocessor_config.json or processor_config.json")
    return config


def _first_qwen(config: Config) -> dict[str, Any]:
    """Return what the config.json of the first Qwen-VL or Qwen-Audio says about its processor."""
    visual, audio = config.get("visual"), config.get("audio")
    if isinstance(visual, Mapping):
        return {"image_processor_type": "QwenVLFirst", **visual}
    if isinstance(audio, Mapping):
        return {"feature_extractor_type": "QwenAudioFirst", **audio}
    return {}


def _of_model(config: Config) -> Config:
    """Return what config.json says of patches, and of which of their features the model sees."""
    said = {**config, **config.get("vision_config", {})}
    return {
        key: said[key] for key in ("patch_size", "vision_feature_select_strategy") if key in said
    }


def _read(path: Path) -> dict[str, Any]:
    """Return one file's object, empty where there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no object")
    return found


def number(config: Config, key: str, default: float) -> float:
    """Return a number above 0, or `default` where the key is missing or null."""
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"{key} is {value!r}; it must be a number above 0")
    return value


def integer(config: Config, key: str, default: int) -> int:
    """Return an integer above 0, or `default` where the key is missing or null."""
    value = number(config, key, default)
    if value != int(value):
        raise ConfigError(f"{key} is {value!r}; it must be an integer")
    return int(value)


def expect(config: Config, key: str, *values: object) -> None:
    """Raise ConfigError unless `key` is missing or has one of `values`."""
    if key in config and config[key] not in values:
        allowed = " or ".join(repr(value) for value in values)
        raise ConfigError(f"{key} is {config[key]!r}; only {allowed} is implemented")


def required(config: Config, key: str, where: str) -> int:
    """Return an integer above 0; raises ConfigError where the key is missing."""
    if config.get(key) is None:
        raise ConfigError(f"{key} is missing: {where} has it")
    return integer(config, key, 0)


def size_of(config: Config, default: Mapping[str, int]) -> Mapping[str, int]:
    """Return `size` as a mapping: old files have one integer, which means a square."""
    size = config.get("size")
    if size is None:
        return default
    if isinstance(size, int):
        return {"height": size, "width": size}
    if not isinstance(size, Mapping):
        raise ConfigError(f"size is {size!r}; it must be a mapping or an integer")
    return {key: integer(size, key, 0) for key, value in size.items() if value is not None}


def square_of(config: Config, default: int) -> int:
    """Return the side of `size`, which must be a square of height and width."""
    size = size_of(config, {"height": default, "width": default})
    side = size.get("height")
    if side is None or side != size.get("width"):
        raise ConfigError(f"size is {dict(size)}; only a square of height and width is implemented")
    return side
