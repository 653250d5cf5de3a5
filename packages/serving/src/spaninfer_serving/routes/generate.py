"""POST /generate, SGLang's native route."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response
from spaninfer_engine import Placement

from spaninfer_serving.generate_api.answer import GenerateAnswer
from spaninfer_serving.generate_api.request import check_start, completion_of, naming, renamed
from spaninfer_serving.http.stream import DataEvents
from spaninfer_serving.jobs.service import GenerationJob, service_of
from spaninfer_serving.openapi import answers_to
from spaninfer_serving.requests.parse_pool import Check
from spaninfer_serving.routes.respond import read, started, streamed, whole
from spaninfer_serving.wire.generate import GenerateRequest, GenerateResponse

router = APIRouter()
EVENTS = "Events that hold what there is of a result so far, then [DONE]"


@router.post(
    "/generate", openapi_extra=answers_to(GenerateRequest, GenerateResponse, events=EVENTS)
)
async def generate(request: Request) -> Response:
    """Continue texts or token ids, in SGLang's form."""
    service = service_of(request)
    request.state.prompt_param = "input_ids"

    def ask(body: GenerateRequest, placement: Placement, check: Check) -> GenerationJob:
        with naming(body):
            job = service.ask_completion(completion_of(body), placement, check)
        check_start(body, job.prompts)
        return renamed(job)

    body, job = await read(request, GenerateRequest, ask)
    if body.rid is not None:
        request.state.tally.request_id = body.rid
    outputs = await started(request, job, is_streamed=body.stream)
    version = service.client.gate.state.weight_version  # weights change while nothing runs
    answer = GenerateAnswer(body, job, service.words, version)
    if body.stream:
        return streamed(request, answer.growing(outputs), DataEvents())
    return await whole(request, lambda: answer.whole(outputs))
