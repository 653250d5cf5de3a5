"""The list of models as it travels."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class Model(BaseModel):
    """One served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "spaninfer"
    max_model_len: int
    default_sampling: dict[str, float | int | None]  # what a request means that does not say


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[Model]
