"""Jobs of the Responses API: from a request to the engine, and to the kept response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from secrets import token_hex

from spaninfer_engine import Output, Placement

from spaninfer_serving.blocks import BlockAnswer, read_whole
from spaninfer_serving.responses_api.answer import finished, items_of
from spaninfer_serving.responses_api.request import chat_of, conversation_of, turn_of
from spaninfer_serving.responses_api.store import StoredResponse
from spaninfer_serving.service import GenerationJob, Service
from spaninfer_serving.translated import TranslatedChat
from spaninfer_serving.wire.chat import ChatRequest, Message
from spaninfer_serving.wire.responses import OutputItem, ResponseObject, ResponsesRequest


@dataclass(frozen=True, slots=True)
class ResponseJob:
    """A request that the engine may start, and the response it begins with."""

    generation: GenerationJob
    conversation: tuple[Message, ...]  # without instructions
    response: ResponseObject


@dataclass(frozen=True, slots=True)
class ResponseService:
    """The part of a service that the routes of responses use."""

    service: Service

    def chat(self, body: ResponsesRequest, placement: Placement) -> TranslatedChat:
        """Return the chat that a request asks for; Problem where it goes on from none that is kept.

        May be called in any thread.
        """
        history: tuple[Message, ...] = ()
        if body.previous_response_id is not None:
            store, param = self.service.stored, "previous_response_id"
            history = store.get(placement.client, body.previous_response_id, param).conversation
        return chat_of(body, history)

    def begun(
        self, body: ResponsesRequest, chat: ChatRequest, generation: GenerationJob
    ) -> ResponseJob:
        """Return the response that a chat's answer will be."""
        conversation = conversation_of(body, chat)
        return ResponseJob(generation, conversation, self._begun(body, generation))

    async def whole(
        self, job: ResponseJob, outputs: AsyncIterator[tuple[int, Output]]
    ) -> ResponseObject:
        """Return the whole response."""
        answer, last = await read_whole(outputs, job.generation.answers)
        return await self.finish(job, answer, last, items_of(job.response.id, answer))

    async def finish(
        self, job: ResponseJob, answer: BlockAnswer, last: Output, items: list[OutputItem]
    ) -> ResponseObject:
        """Return the finished response, and keep it if that was asked for."""
        reasoning = answer.texts("reasoning")
        num_reasoning = await asyncio.to_thread(self._num_tokens, reasoning) if reasoning else 0
        response = finished(job.response, answer, last, items, num_reasoning)
        if response.store:
            conversation = (*job.conversation, turn_of(answer))
            stored = StoredResponse(response.model_dump_json().encode(), conversation)
            self.service.stored.put(job.generation.placement.client, response.id, stored)
        return response

    def _num_tokens(self, text: str) -> int:
        return len(self.service.engine.tokenizer.encode(text, add_special=False))

    def _begun(self, body: ResponsesRequest, job: GenerationJob) -> ResponseObject:
        return ResponseObject(
            id=f"resp_{token_hex(16)}",
            created_at=job.meta.created,
            status="in_progress",
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata,
            model=self.service.model,
            parallel_tool_calls=body.parallel_tool_calls,
            previous_response_id=body.previous_response_id,
            reasoning=body.reasoning,
            store=body.store and self.service.stored.is_open,
            temperature=job.sampling.temperature,
            text={"format": {"type": "text"}}
            | body.text.model_dump(by_alias=True, exclude_none=True),
            tool_choice=body.tool_choice,
            tools=body.tools,
            top_p=job.sampling.top_p,
        )
