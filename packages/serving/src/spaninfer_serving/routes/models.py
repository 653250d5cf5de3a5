"""GET /v1/models and /v1/models/{name}."""

from __future__ import annotations

from contextlib import suppress

from fastapi import APIRouter, Request
from spaninfer_engine import EngineError
from spaninfer_engine.serving import Frontend

from spaninfer_serving.service import Service, service_of
from spaninfer_serving.translate import defaults_of
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.models import Modality, Model, ModelList

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> ModelList:
    """List what is served."""
    return ModelList(data=[_model(service_of(request))])


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> Model:
    """Describe one model."""
    found = _model(service_of(request))
    if name != found.id:
        raise Problem(
            404, f"the model {name!r} does not exist", param="model", code="model_not_found"
        )
    return found


def _model(service: Service) -> Model:
    return Model(
        id=service.model,
        created=service.created_s,
        max_model_len=service.engine.context,
        input_modalities=_modalities(service.engine),
        supports_tools=service.traits.takes_tools and service.traits.dialect is not None,
        default_sampling=defaults_of(service.engine.default_sampling),
    )


def _modalities(engine: Frontend) -> list[Modality]:
    """Return the kinds of input; text alone where what prepares media is missing."""
    found: list[Modality] = ["text"]
    with suppress(EngineError):
        if (processor := engine.media_processor) is not None:
            found += sorted(processor.kinds)
    return found
