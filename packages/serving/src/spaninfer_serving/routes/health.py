"""GET /health/live, /health/ready (also as /health) and /metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from spaninfer_engine import EngineClosed, EngineState

from spaninfer_serving.jobs.service import service_of

router = APIRouter()


@router.head("/health/live", include_in_schema=False)
@router.get("/health/live")
async def live(request: Request) -> JSONResponse:
    """Say whether a restart would not help: 503 after the engine failed."""
    try:
        stats = await service_of(request).client.stats()
    except EngineClosed:  # its process is gone, and this one ends: another one is on its way
        return JSONResponse({"status": "the engine is restarting"})
    if stats.state is EngineState.FAILED:
        return JSONResponse({"status": "the engine has failed"}, status_code=503)
    return JSONResponse({"status": "live"})


@router.head("/health/ready", include_in_schema=False)
@router.get("/health/ready")
@router.head("/health", include_in_schema=False)
@router.get("/health")  # where probes written for other servers look
async def ready(request: Request) -> JSONResponse:
    """Say whether new requests are welcome: 503 while draining, or after the engine failed."""
    service = service_of(request)
    gate = service.client.gate.state
    if service.draining or gate.is_closed:
        return JSONResponse({"status": "draining"}, status_code=503)
    if gate.is_asleep or gate.is_changing:
        said = "the engine is asleep" if gate.is_asleep else "weights are exchanged"
        return JSONResponse({"status": said}, status_code=503)
    state = (await service.client.stats()).state
    if state is not EngineState.RUNNING:
        return JSONResponse({"status": f"the engine is {state.value}"}, status_code=503)
    return JSONResponse({"status": "ready"})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return all figures in Prometheus' text format."""
    service = service_of(request)
    text = service.metrics.text(await service.client.stats())
    return Response(text, media_type=CONTENT_TYPE_LATEST)
