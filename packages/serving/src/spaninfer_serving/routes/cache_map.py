"""GET /cache_map: what the engine does right now, for the playground's picture of it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from spaninfer_engine import GroupMap

from spaninfer_serving.jobs.service import service_of
from spaninfer_serving.routes.respond import caller_of
from spaninfer_serving.wire.cache_map import (
    CacheFigures,
    FirstTokens,
    GroupCells,
    SequenceFigures,
)
from spaninfer_serving.wire.errors import Problem

router = APIRouter()

MAX_CELLS = 2048  # of all cache groups: as many as a page has room to show


@router.get("/cache_map")
async def cache_map(request: Request) -> CacheFigures:
    """Say which sequences run, and what each span of the KV cache holds; no text, and no ids.

    Where several keys are served, it takes an admin key to see what others do.
    """
    service = service_of(request)
    if not service.settings.may_watch(caller_of(request).key):
        raise Problem(
            403,
            "/cache_map shows the requests of all keys; it needs an admin key, of --admin-key-file",
            type="permission_error",
            code="admin_key_needed",
        )
    service.demand("generate")
    stats, picture = await service.client.stats(), await service.client.cache_map()
    bounds, counts = service.metrics.first_tokens()
    room = MAX_CELLS // max(1, len(picture.groups))
    return CacheFigures(
        span_len=picture.span_len,
        running=[
            SequenceFigures(
                number=seq.number,
                prompt_tokens=seq.prompt_len,
                cached_tokens=seq.cached_len,
                output_tokens=seq.output_len,
                decoding=seq.is_decoding,
            )
            for seq in picture.running
        ],
        waiting=stats.waiting,
        generated_tokens=stats.generated_tokens,
        prefilled_tokens=stats.prefilled_tokens,
        prefix_hit_tokens=stats.prefix_hit_tokens,
        uptime_s=stats.uptime_s,
        groups=[_group(group, room) for group in picture.groups],
        first_token_seconds=FirstTokens(bounds=bounds, counts=counts),
    )


def _group(group: GroupMap, room: int) -> GroupCells:
    cells = group.cells(room)
    return GroupCells(
        num_spans=len(group.states),
        spans_per_cell=-(-len(group.states) // room),
        states="".join(str(int(state)) for state, _ in cells),
        owners=[-1 if owner is None else owner for _, owner in cells],
    )
