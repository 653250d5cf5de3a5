"""The service that routes share: the engine, its model's name, and jobs made from bodies."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fastapi import Request
from spaninfer_engine import InvalidGrammar, Output, Placement, PromptTooLong, SamplingParams
from spaninfer_engine.serving import Frontend, RenderedPrompt, Task, media_of, shown

from spaninfer_serving.answers.repeated_prompts import check_repeats
from spaninfer_serving.answers.responses import Prompt, ResponseMeta
from spaninfer_serving.answers.text_offsets import Vocabulary
from spaninfer_serving.chat.constrained_calls import (
    constraining_param,
    constrains_calls,
    with_calls,
)
from spaninfer_serving.chat.prompt import ChatPrompt, answer_format, chat_prompt
from spaninfer_serving.chat.traits import ChatTraits, traits_of
from spaninfer_serving.dialects.parser import AnswerFormat
from spaninfer_serving.engine.client import EngineClient
from spaninfer_serving.engine.control import StartRequest
from spaninfer_serving.fill_in_middle.prompt import FimPrompts
from spaninfer_serving.fill_in_middle.request import filling
from spaninfer_serving.jobs.outputs import outputs_of
from spaninfer_serving.observability.access_log import Tally
from spaninfer_serving.observability.figures import Figures
from spaninfer_serving.observability.metrics import Metrics
from spaninfer_serving.requests.forms import form_param, problem_of_form
from spaninfer_serving.requests.media_inputs import (
    MediaInputs,
    ReadMedia,
    media_tokens,
    token_counts,
)
from spaninfer_serving.requests.parameters import prompts_of, sampling_of, sampling_with
from spaninfer_serving.requests.parse_pool import Check, ParsePool
from spaninfer_serving.settings import Settings
from spaninfer_serving.wire.chat import ChatRequest, ConversationFields
from spaninfer_serving.wire.completions import CompletionRequest
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.sampling import SamplingFields
from spaninfer_serving.wire.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TemplateRequest,
    TemplateResponse,
    TokenizeRequest,
    TokenizeResponse,
)

MAX_PROMPTS = 1024  # prompts of one text completion

# So many characters per token of the context are tokenised first: where these have twice the tokens
# that fit, the rest is not read (2 MB take a second). Few texts have more than 8 per token.
PROBED_CHARS = 16

ROUTES: Mapping[Task, str] = {
    "generate": "/v1/chat/completions and /v1/completions",
    "embed": "/v1/embeddings",
    "score": "/rerank and /score",
    "classify": "/classify",
}
"""The endpoints of each task."""


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """A request that the engine may start: its prompts as ids, and how to sample."""

    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    placement: Placement
    meta: ResponseMeta
    form_param: str  # what says the form of the answer, where it has one
    answers: AnswerFormat | None = None  # of a chat: how its answers are taken apart


@dataclass(slots=True)
class Service:
    """One engine behind one name."""

    client: EngineClient
    settings: Settings
    metrics: Metrics
    parse_pool: ParsePool
    media_inputs: MediaInputs
    traits: ChatTraits  # what the model's chat template does with tools and reasoning
    created_s: int  # Unix time
    fim: FimPrompts | None  # what the model is asked to fill in the middle by, if it can
    draining: bool = False

    @classmethod
    def new(
        cls, client: EngineClient, settings: Settings, figures: Figures | None = None
    ) -> Service:
        """Return the service of an engine, dated now; `figures` are shared with other processes."""
        front = client.front
        return cls(
            client,
            settings,
            Metrics(
                figures or Figures.own(),
                vllm_names=settings.metrics_names == "both",
                engine_restarts=settings.engine_restarts,
            ),
            ParsePool(settings.num_places(front.resolved)),
            MediaInputs(front, settings),
            traits_of(front.template, front.tokenizer, settings.tool_parser),
            int(time.time()),
            FimPrompts.of(front.tokenizer),
        )

    def close(self) -> None:
        """End the processes that decode media; idempotent. The engine is closed by its owner."""
        self.media_inputs.close()

    @property
    def engine(self) -> Frontend:
        """The part of the engine that needs no steps."""
        return self.client.front

    @property
    def model(self) -> str:
        """The name of the model, the first where it has several."""
        return self.engine.resolved.name

    @property
    def words(self) -> Vocabulary:
        """The decoder of single tokens, and which of them texts leave out."""
        return self.engine.tokenizer

    def demand(self, task: Task) -> None:
        """Raise Problem where the model is not for what a route does."""
        tasks = self.engine.tasks
        if task not in tasks:
            raise Problem(
                400,
                f"the model {self.model!r} does not {task}; this server answers at "
                f"{', '.join(ROUTES[each] for each in sorted(tasks))}",
                code="unsupported_task",
            )

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the model, the first first."""
        return tuple(dict.fromkeys((self.model, *self.settings.further_names)))

    def named(self, asked: str | None) -> str:
        """Return the name that an answer carries: the one that was asked for, or the first.

        Raises Problem where that is another model's.
        """
        if asked is None or asked in self.names:
            return asked or self.model
        names = ", ".join(map(repr, self.names))
        raise Problem(
            404,
            f"the model {asked!r} does not exist; this server has {names}",
            param="model",
            code="model_not_found",
        )

    def ask_chat(
        self, body: ChatRequest, placement: Placement, media: ReadMedia, check: Check
    ) -> GenerationJob:
        """Return what a chat request asks; raises Problem, an engine error, or what `check` does.

        `check` is called between stages of the work. `media` are what `MediaInputs` read.
        """
        sampling = sampling_of(body, self.engine.default_sampling)
        ids, rendered = self.chat_ids(body, media, check)
        self._check_len(ids)
        prompt = Prompt(ids, "")
        check_repeats((prompt,), sampling, body)
        form = answer_format(body, self.traits, rendered)
        if form is not None:
            kept = tuple(self.traits.controls.values())
            sampling = sampling_with(sampling, {"keep_special": kept})
        meta = self._envelope("chatcmpl", body)
        if (found := media_of(ids)) is not None:
            meta = replace(meta, media_tokens=token_counts(found.items))
        sampling = with_calls(body, sampling, self.traits, form)
        param = constraining_param(body) if constrains_calls(body) else form_param(body)
        return GenerationJob((prompt,), sampling, placement, meta, param, form)

    def chat_ids(
        self, body: ConversationFields, media: ReadMedia, check: Check
    ) -> tuple[Sequence[int], RenderedPrompt]:
        """Return the token ids of a conversation, those of its media among them, and its text."""
        given = self._chat_prompt(body, media)
        rendered = self._rendered(body, given, check)
        prepared = self.engine.prepare_media(given.messages) if media else []
        check()
        return self.engine.encode_rendered(rendered, prepared), rendered

    def render(self, body: ConversationFields, check: Check) -> RenderedPrompt:
        """Return what the chat template makes of a conversation."""
        return self._rendered(body, self._chat_prompt(body, {}), check)

    def _chat_prompt(self, body: ConversationFields, media: ReadMedia) -> ChatPrompt:
        parts = {place: each.part for place, each in media.items()}
        return chat_prompt(body, self.traits, parts)

    def _rendered(
        self, body: ConversationFields, given: ChatPrompt, check: Check
    ) -> RenderedPrompt:
        asked = (message.text() for message in body.messages if message.role != "assistant")
        self.probe("".join(asked), "messages")  # of answers, templates may drop the reasoning
        check()
        rendered = self.engine.render_chat(
            given.messages,
            tools=given.tools,
            add_generation_prompt=body.add_generation_prompt,
            variables=given.variables,
        )
        check()
        self.probe(rendered.text, "messages")
        check()
        return rendered

    def apply_template(self, body: TemplateRequest, check: Check) -> TemplateResponse:
        """Return the prompt of a conversation."""
        self.named(body.model)
        return TemplateResponse(prompt=self.render(body, check).text)

    def tokenize(self, body: TokenizeRequest, media: ReadMedia, check: Check) -> TokenizeResponse:
        """Return the token ids of a text or a conversation, however many they are."""
        self.named(body.model)
        ids: Sequence[int]
        if body.prompt is None:
            ids = self.chat_ids(body, media, check)[0]
        else:
            self.probe(body.prompt, "prompt")
            check()
            ids = self.engine.tokenizer.encode(body.prompt, add_special=body.add_special_tokens)
        found = media_of(ids)
        texts = (self.words.token_bytes(token_id).decode("utf-8", "replace") for token_id in ids)
        return TokenizeResponse(
            count=len(ids),
            max_model_len=self.engine.context,
            tokens=list(ids),
            token_strs=list(texts) if body.return_token_strs else None,
            media=None if found is None else media_tokens(body.media(), found.items),
        )

    def detokenize(self, body: DetokenizeRequest, check: Check) -> DetokenizeResponse:
        """Return the text of token ids."""
        self.named(body.model)
        check()
        words = self.engine.tokenizer
        for place, token_id in enumerate(body.tokens):
            if not 0 <= token_id < words.vocab_size:
                raise Problem(
                    400,
                    f"tokens[{place}] is {shown(token_id)}; allowed is 0 to {words.vocab_size - 1}",
                    param=f"tokens[{place}]",
                )
        return DetokenizeResponse(prompt=words.decode(body.tokens, skip_special=False))

    def ask_completion(
        self, body: CompletionRequest, placement: Placement, check: Check
    ) -> GenerationJob:
        """Return what a text completion asks, as `ask_chat` does for a chat."""
        sampling = sampling_of(body, self.engine.default_sampling)
        texts = prompts_of(body)
        if len(texts) > MAX_PROMPTS:
            raise Problem(
                400, f"prompt holds {len(texts)} prompts; at most {MAX_PROMPTS}", param="prompt"
            )
        choices, most = len(texts) * sampling.n, self.engine.resolved.max_waiting
        if choices > most:  # it would be refused for want of places, now and for ever
            raise Problem(
                400,
                f"{len(texts)} prompts with n = {sampling.n} are {choices} choices; "
                f"this server takes at most {most} at once",
                param="n",
            )
        if body.suffix:
            sampling = filling(self.fim, body, sampling)
        prompts = tuple(self._prompt(text, body, check) for text in texts)
        check_repeats(prompts, sampling, body)
        meta = self._envelope("cmpl", body)
        return GenerationJob(prompts, sampling, placement, meta, form_param(body))

    def _prompt(self, text: str | list[int], body: CompletionRequest, check: Check) -> Prompt:
        check()
        words = self.engine.tokenizer
        if isinstance(text, str):
            self.probe(text, "prompt")
            check()
            ids = self._encoded(text, body)
        else:
            ids = text
        self._check_len(ids)
        if not isinstance(text, str):
            # Ids that the model does not know are the engine's to refuse.
            known = [token_id for token_id in ids if 0 <= token_id < words.vocab_size]
            text = words.decode(known) if body.echo else ""
        return Prompt(tuple(ids), text)

    def _encoded(self, text: str, body: CompletionRequest) -> list[int]:
        if not body.suffix:
            return self.engine.tokenizer.encode(text, add_special=body.add_special_tokens)
        assert self.fim is not None, "another model's request was refused"
        self.probe(body.suffix, "suffix")
        return self.fim.encode(text, body.suffix, add_special=body.add_special_tokens)

    def probe(self, text: str, param: str) -> None:
        """Raise Problem for a text whose beginning already has far too many tokens."""
        context = self.engine.context
        if len(text) <= PROBED_CHARS * context:
            return
        found = len(self.engine.tokenizer.encode(text[: PROBED_CHARS * context], add_special=False))
        if found > 2 * context:
            raise Problem(
                400,
                f"this model's maximum context length is {context} tokens; the prompt has more "
                f"than {found} tokens: shorten the prompt",
                param=param,
                code="context_length_exceeded",
            )

    def _check_len(self, ids: Sequence[int]) -> None:
        """Raise what the engine would raise; here it costs the event loop nothing."""
        if len(ids) >= self.engine.context:
            raise PromptTooLong(len(ids), self.engine.context)

    def _envelope(self, prefix: str, body: SamplingFields) -> ResponseMeta:
        name = self.named(body.model)
        if body.stream_options is not None and not body.stream:
            raise Problem(400, "stream_options needs stream to be true", param="stream_options")
        usage = body.stream_options is not None and body.stream_options.include_usage
        return ResponseMeta.new(
            prefix,
            name,
            include_usage=usage,
            token_ids=body.return_token_ids,
            prompt_logprobs=body.prompt_logprobs is not None,
        )

    async def start(
        self, asked: GenerationJob, tally: Tally, *, at_end: bool
    ) -> AsyncIterator[tuple[int, Output]]:
        """Start every prompt, and return the outputs, all at the end or as they come; what refuses
        a prompt is raised here.

        Admission is decided before this returns, so that a refusal still has its own status. To be
        called while the gate is not shut.
        The request can be ended by the id of `tally`, which counts its tokens.
        """
        start = StartRequest(
            request_id=tally.request_id,
            prompts=[prompt.ids for prompt in asked.prompts],
            sampling=asked.sampling,
            placement=asked.placement,
            at_end=at_end,
        )
        try:
            streams = await self.client.start(start)
        except InvalidGrammar as refused:
            raise problem_of_form(asked.form_param, refused) from refused
        tally.asked, tally.is_chat = asked.sampling, asked.meta.id.startswith("chat")

        def ended(output: Output) -> None:
            assert output.usage is not None
            if output.error is not None and output.usage.scheduled_s is None:
                return  # refused: no step has seen it
            self.metrics.note(output.usage)
            tally.add(output)

        return outputs_of(streams, asked.sampling.n, ended)


def service_of(request: Request) -> Service:
    """Return the service that the app was made with."""
    service: Service = request.app.state.service
    return service
