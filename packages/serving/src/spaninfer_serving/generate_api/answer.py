"""The engine's outputs as SGLang's results, whole and while they grow."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from pydantic_core import to_json
from spaninfer_engine import FinishReason, Output, TokenLogprob

from spaninfer_serving.answers.fields import TokenDecoder
from spaninfer_serving.answers.responses import Answer, Collected, Prompt, checked, collect
from spaninfer_serving.jobs.service import GenerationJob
from spaninfer_serving.wire.generate import (
    Ended,
    GenerateRequest,
    GenerateResult,
    Logprob,
    MetaInfo,
)
from spaninfer_serving.wire.pieces import Lists, filled, in_pieces

# An event of SGLang's holds all that there is so far. From the 32nd token on, one comes when that
# has grown by a 32nd: so a stream has 32 times the bytes of its answer, and not a square of them.
GROWTH = 32


@dataclass(frozen=True, slots=True)
class GenerateAnswer:
    """The answers to one request: number = prompt * n + index."""

    body: GenerateRequest
    job: GenerationJob
    words: TokenDecoder
    weight_version: str

    async def whole(self, outputs: AsyncIterator[tuple[int, Output]]) -> Answer:
        """Return all results as JSON in pieces."""
        choices, _ = await collect(outputs, self.job.sampling.n * len(self.job.prompts))
        return self._pieces(choices)

    def _pieces(self, choices: Sequence[Collected]) -> Iterator[str]:
        before, behind = "[]" if self.body.is_list else ("", "")
        yield before
        for number, choice in enumerate(choices):
            yield "," if number else ""
            first = choices[number - number % self.job.sampling.n]  # computes the prompt
            yield from self._result(number, choice, first.prompt_logprobs)
        yield behind

    async def growing(
        self, outputs: AsyncIterator[tuple[int, Output]]
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield each result as an event whenever it has grown enough, and when it has ended."""
        choices = [Collected() for _ in range(self.job.sampling.n * len(self.job.prompts))]
        sent = [0] * len(choices)
        async for number, output in outputs:
            choice = choices[number]
            choice.take(checked(output))
            num_tokens = len(choice.token_ids)
            is_due = num_tokens >= sent[number] + max(1, sent[number] // GROWTH)
            if is_due or output.finish_reason is not None:
                sent[number] = num_tokens
                yield ["".join(self._result(number, choice, ())).encode()]

    def _result(
        self, number: int, choice: Collected, about_prompt: Sequence[TokenLogprob]
    ) -> Iterator[str]:
        """Yield the JSON of one result."""
        prompt = self.job.prompts[number // self.job.sampling.n]
        meta = MetaInfo(
            id=self.body.rid or self.job.meta.id,
            finish_reason=_ended(choice),
            prompt_tokens=len(prompt.ids),
            completion_tokens=len(choice.token_ids),
            weight_version=self.weight_version,
        )
        usage = choice.last.usage if choice.last is not None else None
        if usage is not None:
            meta.cached_tokens = usage.cached_len
            if usage.finished_s is not None:
                meta.e2e_latency = usage.finished_s - usage.arrived_s
        lists = self._lists(choice, prompt, about_prompt) if self.body.return_logprob else {}
        for name in lists:
            setattr(meta, name, None)
        result = GenerateResult(
            text="".join(choice.text), output_ids=choice.token_ids, meta_info=meta
        )
        if self.body.stream and self.body.is_list:
            result.index = number
        yield from filled(result.model_dump_json(exclude_unset=True), lists)

    def _lists(
        self, choice: Collected, prompt: Prompt, about_prompt: Sequence[TokenLogprob]
    ) -> Lists:
        """Return log-probabilities in pieces, in the order of the fields that hold them."""
        start = self.body.logprob_start_len
        tokens = [] if start < 0 else prompt.ids[start : start + 1]
        entries = about_prompt[start:] if start >= 0 else ()
        # In front of the first token that is reported, SGLang has nothing.
        own = {
            "input_token_logprobs": chain(
                [(None, token_id, self._text(token_id)) for token_id in tokens],
                map(self._own, entries),
            ),
            "output_token_logprobs": map(self._own, choice.logprobs),
        }
        top = {
            "input_top_logprobs": chain([None for _ in tokens], map(self._top, entries)),
            "output_top_logprobs": map(self._top, choice.logprobs),
        }
        wanted = own | top if self.body.top_logprobs_num else own
        return {name: _in_pieces(wanted[name]) for name in MetaInfo.model_fields if name in wanted}

    def _own(self, entry: TokenLogprob) -> Logprob:
        return _number(entry.logprob), entry.token_id, self._text(entry.token_id)

    def _top(self, entry: TokenLogprob) -> list[Logprob]:
        return [(_number(logprob), i, self._text(i)) for i, logprob in entry.top]

    def _text(self, token_id: int) -> str | None:
        if not self.body.return_text_in_logprobs:
            return None
        return self.words.token_bytes(token_id).decode("utf-8", "replace")


def _number(logprob: float) -> float:
    return max(logprob, -9999.0)  # JSON has no -inf


def _in_pieces(items: Iterable[object]) -> Iterator[str]:
    """Yield the JSON of a list, some items at a time."""
    comma = "["
    for piece in in_pieces(items):
        yield comma + to_json(piece).decode()[1:-1]
        comma = ","
    yield "]"


def _ended(choice: Collected) -> Ended | None:
    """Return why a choice ended, by SGLang's words; None where it goes on."""
    last = choice.last
    match last and last.finish_reason:
        case None:
            return None
        case FinishReason.STOP:
            return Ended(type="stop", matched=choice.end.matched)
        case FinishReason.STOPPED:
            return Ended(type="abort", message="ended by an operator, or by the end of a drain")
        case _:
            return Ended(type="length", length=len(choice.token_ids))
