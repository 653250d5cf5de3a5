"""POST /v1/embeddings, /rerank, /score and /classify, and what else they are called."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response
from spaninfer_engine.serving import Task

from spaninfer_serving.admission.fair_queue import Client
from spaninfer_serving.answers.responses import Answer
from spaninfer_serving.jobs.service import service_of
from spaninfer_serving.jobs.texts import TextJob, TextService
from spaninfer_serving.openapi import answers_to
from spaninfer_serving.requests.parse_pool import Check
from spaninfer_serving.routes.respond import read_texts, whole
from spaninfer_serving.wire.texts import (
    ClassifyRequest,
    ClassifyResponse,
    EmbeddingRequest,
    EmbeddingResponse,
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
    TextFields,
)

router = APIRouter()
Body = TypeVar("Body", bound=TextFields)

RERANK = answers_to(RerankRequest, RerankResponse)
SCORE = answers_to(ScoreRequest, ScoreResponse)
CLASSIFY = answers_to(ClassifyRequest, ClassifyResponse)


@router.post("/v1/embeddings", openapi_extra=answers_to(EmbeddingRequest, EmbeddingResponse))
async def embeddings(request: Request) -> Response:
    """Turn texts into vectors."""
    texts = TextService(service_of(request))
    ask: Any = texts.ask_texts
    return await _answer(request, EmbeddingRequest, "embed", "input", ask, texts.embeddings)


@router.post("/rerank", openapi_extra=RERANK)
@router.post("/v1/rerank", openapi_extra=RERANK)
@router.post("/v2/rerank", openapi_extra=RERANK)
async def rerank(request: Request) -> Response:
    """Order documents by how well they answer a query."""
    texts = TextService(service_of(request))
    ask = texts.ask_rerank
    return await _answer(request, RerankRequest, "score", "documents", ask, texts.ranking)


@router.post("/score", openapi_extra=SCORE)
@router.post("/v1/score", openapi_extra=SCORE)
async def score(request: Request) -> Response:
    """Say how well texts fit together."""
    texts = TextService(service_of(request))
    return await _answer(request, ScoreRequest, "score", "text_2", texts.ask_score, texts.scores)


@router.post("/classify", openapi_extra=CLASSIFY)
@router.post("/v1/classify", openapi_extra=CLASSIFY)
async def classify(request: Request) -> Response:
    """Give texts labels."""
    texts = TextService(service_of(request))
    ask: Any = texts.ask_texts
    return await _answer(request, ClassifyRequest, "classify", "input", ask, texts.labels)


async def _answer(
    request: Request,
    kind: type[Body],
    task: Task,
    param: str,
    ask: Callable[[Body, Client, Check], TextJob],
    work: Callable[[Body, TextJob], Awaitable[Answer]],
) -> Response:
    """Answer a request whose texts are in the parameter `param`."""
    request.state.prompt_param = param
    body, job = await read_texts(request, kind, ask, task)
    client = service_of(request).client
    await client.admit(job.client.account, job.usage.total_tokens)
    request.state.tally.prompt_tokens = job.usage.prompt_tokens
    return await whole(request, lambda: work(body, job))
