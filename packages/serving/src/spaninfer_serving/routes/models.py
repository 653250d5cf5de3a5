"""GET /v1/models, /v1/models/{name}, and SGLang's /model_info."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

from fastapi import APIRouter, Request
from spaninfer_engine import EngineError
from spaninfer_engine.serving import Frontend

from spaninfer_serving.jobs.service import Service, service_of
from spaninfer_serving.requests.parameters import defaults_of
from spaninfer_serving.wire.models import Modality, Model, ModelInfo, ModelList

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> ModelList:
    """List what is served: the model under each of its names."""
    service = service_of(request)
    return ModelList(data=[_model(service, name) for name in service.names])


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> Model:
    """Describe one model."""
    service = service_of(request)
    return _model(service, service.named(name))


@router.get("/get_model_info")
@router.get("/model_info")
async def model_info(request: Request) -> ModelInfo:
    """Describe the model, in SGLang's form."""
    service = service_of(request)
    modalities = _modalities(service.engine)
    return ModelInfo(
        model_path=service.model,
        is_generation="generate" in service.engine.tasks,
        has_image_understanding="image" in modalities,
        has_audio_understanding="audio" in modalities,
        weight_version=service.client.gate.state.weight_version,
    )


def _model(service: Service, name: str) -> Model:
    return Model(
        id=name,
        display_name=name,
        created=service.created_s,
        created_at=datetime.fromtimestamp(service.created_s, UTC),
        max_model_len=service.engine.context,
        input_modalities=_modalities(service.engine),
        supports_tools=service.traits.takes_tools and service.traits.dialect is not None,
        supports_suffix=service.fim is not None,
        default_sampling=defaults_of(service.engine.default_sampling),
    )


def _modalities(engine: Frontend) -> list[Modality]:
    """Return the kinds of input; text alone where what prepares media is missing."""
    found: list[Modality] = ["text"]
    with suppress(EngineError):
        if (processor := engine.media_processor) is not None:
            found += sorted(processor.kinds)
    return found
