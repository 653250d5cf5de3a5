"""The routes of operators, under the names that vLLM and SGLang have for them.

Each needs an admin key: without --admin-key-file there is none, and all are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, get_args

from fastapi import APIRouter, Depends, Request

from spaninfer_serving.engine.client import EngineClient
from spaninfer_serving.jobs.service import service_of
from spaninfer_serving.openapi import answers_to, query, refusals
from spaninfer_serving.routes.respond import caller_of, handled
from spaninfer_serving.wire.admin import (
    AbortRequest,
    AbortResponse,
    Done,
    LogLevelRequest,
    MemoryTags,
    PauseMode,
    PauseState,
    ProfileWritten,
    ServerInfo,
    Sleeping,
    SleepMode,
    UpdateWeightsRequest,
    Version,
    WeightsUpdated,
    WeightVersion,
    WorldSize,
)
from spaninfer_serving.wire.errors import Problem


def admin_only(request: Request) -> None:
    """Raise Problem unless a request has an admin key."""
    settings = service_of(request).settings
    if not settings.is_admin(caller_of(request).key):
        way = "send one" if settings.admin_hashes else "the server was started without any"
        raise Problem(
            403,
            f"{request.url.path} needs an admin key, of --admin-key-file; {way}",
            type="permission_error",
            code="admin_key_needed",
        )


router = APIRouter(dependencies=[Depends(admin_only)])
public = APIRouter()  # with any key

MODES = get_args(PauseMode)
SLEEP_MODES = get_args(SleepMode)
LEVELS = ("1", "2")
WAKE_TAGS = ("weights", "kv_cache")
SGLANG_MODES: dict[str, PauseMode] = {"abort": "abort", "in_place": "keep"}
NOT_SUPPORTED = {
    **dict.fromkeys(
        (
            "/init_weight_transfer_engine",
            "/start_weight_update",
            "/update_weights",
            "/finish_weight_update",
        ),
        "weights come from files alone; save them, and call /update_weights_from_disk",
    ),
    "/collective_rpc": "no code can be sent to the server",
}
"""What frameworks call that this server cannot do, and why."""


PROFILED = refusals(
    {
        403: "Not permitted with this key, or by a server without a folder for profiles",
        409: "A profile is under way, or none was begun",
        507: "There is no room for the profile in the folder",
    }
)


@public.get("/version")
async def server_version() -> Version:
    """Say which version this is."""
    return Version(version=version("spaninfer-serving"))


@router.post("/pause", openapi_extra=query(mode=MODES, clear_cache=("false", "true")))
async def pause(request: Request) -> PauseState:
    """Hold new requests back; running ones end (abort), finish (wait), or freeze (keep)."""
    mode = _chosen(request, "mode", MODES)
    clear_cache = _chosen(request, "clear_cache", ("false", "true")) == "true"
    return await _generating(request).pause(mode, clear_cache=clear_cache)


@router.post("/pause_generation", openapi_extra=query(mode=tuple(SGLANG_MODES)))
async def pause_generation(request: Request) -> PauseState:
    """Pause, with SGLang's names of modes."""
    mode = SGLANG_MODES[_chosen(request, "mode", tuple(SGLANG_MODES))]
    return await _generating(request).pause(mode, clear_cache=False)


@router.post("/continue_generation")
@router.post("/resume")
async def resume(request: Request) -> PauseState:
    """Let requests in again after a pause or a drain, and go on with those that were kept."""
    return await _generating(request).resume()


@router.get("/is_paused")
async def is_paused(request: Request) -> PauseState:
    """Say whether the server is paused."""
    return await service_of(request).client.pause_state()


@router.post("/abort_request", openapi_extra=answers_to(AbortRequest, AbortResponse))
@router.post("/abort_requests", openapi_extra=answers_to(AbortRequest, AbortResponse))
async def abort(request: Request) -> AbortResponse:
    """End requests by their ids, or all."""
    body = await handled(request, AbortRequest, lambda body, _: body)
    ids = None if body.abort_all else body.ids
    return AbortResponse(aborted=await service_of(request).client.abort(ids))


@router.post("/drain")
async def drain(request: Request) -> Done:
    """Refuse new requests, and answer when none runs any more."""
    await _generating(request).drain()
    return Done()


@router.post("/flush_cache")
@router.post("/reset_prefix_cache")
async def reset_prefix_cache(request: Request) -> Done:
    """Share nothing computed so far with requests from now on."""
    await _generating(request).reset_prefix_cache()
    return Done()


@router.post("/log_level", openapi_extra=answers_to(LogLevelRequest, Done))
async def log_level(request: Request) -> Done:
    """Log from this level on."""
    body = await handled(request, LogLevelRequest, lambda body, _: body)
    await service_of(request).client.log_from(body.level)
    return Done()


@router.post("/start_profile", openapi_extra=PROFILED)
async def start_profile(request: Request) -> Done:
    """Measure what is computed, for a minute at most."""
    await service_of(request).client.start_profile()
    return Done()


@router.post("/stop_profile", openapi_extra=PROFILED)
async def stop_profile(request: Request) -> ProfileWritten:
    """Write what was measured to a file of the folder for profiles."""
    return ProfileWritten(file=await service_of(request).client.stop_profile())


@router.get("/get_server_info")
@router.get("/server_info")
async def server_info(request: Request) -> ServerInfo:
    """Say what the server is and does."""
    service = service_of(request)
    stats = await service.client.stats()
    return ServerInfo(
        version=version("spaninfer-serving"),
        model=service.model,
        weight_version=service.client.gate.state.weight_version,
        decided=_plain(asdict(service.engine.resolved)),
        state=stats.state.value,
        in_flight=await service.client.num_in_flight(),
        running=stats.running,
        waiting=stats.waiting,
        uptime_s=stats.uptime_s,
    )


@router.get("/get_world_size")
async def world_size() -> WorldSize:
    """Say how many processes compute the model."""
    return WorldSize()


SLEPT = {409: "Requests are running", 503: "The weights could not be read"}
UPDATED = {
    403: "Not permitted with this key, or by a server without a folder for weights",
    409: "Requests are kept by a pause",
    503: "The weights could not be read",
}


@router.post(
    "/sleep", openapi_extra=refusals(SLEPT) | query(level=LEVELS, mode=SLEEP_MODES, tags=("",))
)
async def sleep(request: Request) -> Sleeping:
    """Give weights and KV cache back, whatever the level; requests are refused meanwhile."""
    _chosen(request, "level", LEVELS)
    _chosen(request, "tags", ("",))
    return await service_of(request).client.sleep(_chosen(request, "mode", SLEEP_MODES))


@router.post("/wake_up", openapi_extra=refusals(SLEPT) | query(tags=("", *WAKE_TAGS)))
async def wake_up(request: Request) -> Sleeping:
    """Read the weights again, and make a KV cache, whatever the tags; let requests in."""
    for tag in request.query_params.getlist("tags"):
        if tag not in ("", *WAKE_TAGS):
            raise _not_allowed("tags", tag, WAKE_TAGS)
    return await service_of(request).client.wake_up()


@router.get("/is_sleeping")
async def is_sleeping(request: Request) -> Sleeping:
    """Say whether the engine sleeps, and where the weights are."""
    return await service_of(request).client.sleeping()


@router.post(
    "/release_memory_occupation", openapi_extra=answers_to(MemoryTags, Sleeping, refused=SLEPT)
)
async def release_memory(request: Request) -> Sleeping:
    """Sleep, by SGLang's name."""
    await handled(request, MemoryTags, lambda body, _: body)
    return await service_of(request).client.sleep("refuse")


@router.post(
    "/resume_memory_occupation", openapi_extra=answers_to(MemoryTags, Sleeping, refused=SLEPT)
)
async def resume_memory(request: Request) -> Sleeping:
    """Wake up, by SGLang's name."""
    await handled(request, MemoryTags, lambda body, _: body)
    return await service_of(request).client.wake_up()


@router.post(
    "/update_weights_from_disk",
    openapi_extra=answers_to(UpdateWeightsRequest, WeightsUpdated, refused=UPDATED),
)
async def update_weights(request: Request) -> WeightsUpdated:
    """Exchange the weights for those of a folder; requests that come meanwhile wait."""
    body = await handled(request, UpdateWeightsRequest, lambda body, _: body)
    version, num_running = await service_of(request).client.update_weights(
        body.model_path, abort=body.abort_all_requests, version=body.weight_version
    )
    return WeightsUpdated(
        message=f"the weights are those of {body.model_path}",
        num_paused_requests=num_running,
        weight_version=version,
    )


@router.get("/get_weight_version")
async def weight_version(request: Request) -> WeightVersion:
    """Say which weights answer requests."""
    state = service_of(request).client.gate.state
    return WeightVersion(weight_version=state.weight_version)


async def not_supported(request: Request) -> None:
    """Refuse what this server cannot do, by name."""
    path = request.url.path
    raise Problem(
        501,
        f"{path} is not supported by this server: {NOT_SUPPORTED[path]}",
        type="not_supported_error",
        code="not_supported",
    )


for _path in NOT_SUPPORTED:
    router.post(_path, include_in_schema=False)(not_supported)


def _generating(request: Request) -> EngineClient:
    """Return the engine, which generates; Problem for one that does not."""
    service = service_of(request)
    service.demand("generate")
    return service.client


def _plain(decided: dict[str, Any]) -> dict[str, Any]:
    """Return numbers, texts and lists of these as they are, and all else as text."""
    return {
        name: value if isinstance(value, str | int | float | list | None) else str(value)
        for name, value in decided.items()
    }


def _chosen(request: Request, name: str, allowed: tuple[Any, ...]) -> Any:
    """Return a parameter of the query, by default the first; Problem for another value."""
    given = request.query_params.get(name, allowed[0])
    if given not in allowed:
        raise _not_allowed(name, given, allowed)
    return given


def _not_allowed(name: str, given: str, allowed: Sequence[str]) -> Problem:
    return Problem(400, f"{name} is {given!r}; allowed are {', '.join(allowed)}", param=name)
