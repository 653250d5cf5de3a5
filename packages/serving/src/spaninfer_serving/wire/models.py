"""Models as they travel."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import BaseModel

Modality: TypeAlias = Literal["text", "image", "video", "audio"]


class Model(BaseModel):
    """One served model, in OpenAI's and Anthropic's forms at once."""

    id: str
    object: Literal["model"] = "model"
    type: Literal["model"] = "model"
    display_name: str  # the id
    created: int
    created_at: datetime  # the same
    lifecycle: Literal["active"] = "active"
    owned_by: str = "spaninfer"
    max_model_len: int
    input_modalities: list[Modality]
    supports_tools: bool  # does the chat template take them, and is it known how calls are written?
    supports_suffix: bool  # does its vocabulary have marks for filling in the middle?
    default_sampling: dict[str, float | int | None]  # what a request means that does not say


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[Model]


class ModelInfo(BaseModel):
    """The model in SGLang's form; `model_path` is its first name, which tells no path."""

    model_path: str
    is_generation: bool
    has_image_understanding: bool
    has_audio_understanding: bool
    weight_version: str  # of the last update that gave one
