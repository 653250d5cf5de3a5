"""POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from spaninfer_serving.answers.chunks import completion_chunks
from spaninfer_serving.answers.responses import AnswerSpec, completion_response, without_answers
from spaninfer_serving.http.stream import DataEvents
from spaninfer_serving.jobs.service import service_of
from spaninfer_serving.openapi import answers_to
from spaninfer_serving.requests.parameters import only_echoes
from spaninfer_serving.routes.respond import read, started, streamed, whole
from spaninfer_serving.wire.completions import CompletionRequest, CompletionResponse

router = APIRouter()


@router.post(
    "/v1/completions",
    openapi_extra=answers_to(CompletionRequest, CompletionResponse, CompletionResponse),
)
async def completions(request: Request) -> Response:
    """Continue a text, or a list of texts."""
    service = service_of(request)
    request.state.prompt_param = "prompt"
    body, asked = await read(request, CompletionRequest, service.ask_completion)
    outputs = await started(request, asked, is_streamed=body.stream)
    if only_echoes(body):
        outputs = without_answers(outputs)
    spec = AnswerSpec(
        meta=asked.meta,
        words=service.words,
        prompts=asked.prompts,
        choices=asked.sampling.n,
        logprobs=asked.sampling.logprobs is not None,
        echo=body.echo,
        hidden=service.words.special_ids if asked.sampling.skip_special else (),
    )
    if body.stream:
        return streamed(request, completion_chunks(outputs, spec), DataEvents())
    return await whole(request, lambda: completion_response(outputs, spec))
