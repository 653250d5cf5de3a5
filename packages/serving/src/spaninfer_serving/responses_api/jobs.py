"""Jobs of the Responses API: from a request to the engine, and to the kept response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from secrets import token_hex

from spaninfer_engine import Output, Placement

from spaninfer_serving.answers.blocks import BlockAnswer, read_whole
from spaninfer_serving.engine.response_store import StoredResponse
from spaninfer_serving.jobs.service import GenerationJob, Service
from spaninfer_serving.jobs.translated import TranslatedChat
from spaninfer_serving.responses_api.answer import finished, items_of
from spaninfer_serving.responses_api.request import chat_of, conversation_of, turn_of
from spaninfer_serving.wire.chat import ChatRequest, Message
from spaninfer_serving.wire.response_items import OutputItem
from spaninfer_serving.wire.responses import ResponseObject, ResponsesRequest

IN_PLACE_CHARS = 1 << 14  # of a conversation whose JSON is made in the event loop: 20 us


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

    async def recall(
        self, body: ResponsesRequest, placement: Placement
    ) -> tuple[int, Callable[[], TranslatedChat]]:
        """Return what makes the chat of a request that goes on from a response, and the bytes of
        the conversation before it; Problem where none of the id is kept.
        """
        assert body.previous_response_id is not None, "it goes on"
        stored = await self.service.client.kept_response(
            placement.client, body.previous_response_id, "previous_response_id"
        )
        return stored.num_bytes, lambda: chat_of(body, stored.messages())

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
        """Return the finished response, and keep it if `store` was set."""
        reasoning = answer.texts("reasoning")
        num_reasoning = await asyncio.to_thread(self._num_tokens, reasoning) if reasoning else 0
        response = finished(job.response, answer, last, items, num_reasoning)
        if response.store:
            conversation = (*job.conversation, turn_of(answer))
            json = response.model_dump_json().encode()
            if _is_brief(conversation):
                stored = StoredResponse.new(json, conversation)
            else:
                stored = await asyncio.to_thread(StoredResponse.new, json, conversation)
            account = job.generation.placement.client
            await self.service.client.keep_response(account, response.id, stored)
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
            model=job.meta.model,
            parallel_tool_calls=body.parallel_tool_calls,
            previous_response_id=body.previous_response_id,
            reasoning=body.reasoning,
            store=body.store and self.service.settings.max_stored_responses > 0,
            temperature=job.sampling.temperature,
            text={"format": {"type": "text"}}
            | body.text.model_dump(by_alias=True, exclude_none=True),
            tool_choice=body.tool_choice,
            tools=body.tools,
            top_p=job.sampling.top_p,
        )


def _is_brief(conversation: Sequence[Message]) -> bool:
    """Return whether a conversation has little text, and no media."""
    num_chars = sum(len(each.text()) for each in conversation)
    return num_chars <= IN_PLACE_CHARS and not any(each.media() for each in conversation)
