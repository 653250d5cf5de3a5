"""The intake of an engine: a prompt and its sampling parameters become a request."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from random import Random
from threading import Lock
from time import monotonic

from spaninfer_engine.errors import InvalidSampling, RequestError, shown
from spaninfer_engine.frontend.parts import FrontParts
from spaninfer_engine.grammar import GrammarCompiler
from spaninfer_engine.request.prompts import media_of, token_ids
from spaninfer_engine.request.request import Grammar, Placement, Request, SamplingParams, TokenIds
from spaninfer_engine.request.structured import StructuredOutput
from spaninfer_engine.schedule.fair_order import FairOrder
from spaninfer_engine.text.tokenizer import Tokenizer


class Intake:
    """Makes requests, from any number of threads.

    Each gets a number, a seed, its place among its client's others, and what its sampling
    parameters say in words as token ids.
    """

    def __init__(self, front: FrontParts, end_ids: frozenset[int]) -> None:
        self._tokenizer, self._end_ids = front.tokenizer, end_ids
        self._seeds = Random(front.resolved.seed)
        self._lock = Lock()
        self._fair_order = FairOrder()  # under the lock
        self._next_id = 1  # each choice of a request has a number; under the lock
        # Words of one list of prompts are the same for all, and take milliseconds each time.
        self._banned = lru_cache(maxsize=16)(
            partial(_banned, tokenizer=front.tokenizer, vocab=front.vocab)
        )
        self._grammars = GrammarCompiler(front.tokenizer, front.vocab, end_ids)

    def request(
        self, prompt: Sequence[int] | TokenIds, sampling: SamplingParams, placement: Placement
    ) -> Request:
        """Return a request that arrives now.

        Raises InvalidSampling for what looks at text where there is none, RequestError for a
        placement that is none, and what `compile_grammar` and `token_ids` raise.
        """
        if not isinstance(placement, Placement):
            raise RequestError(f"placement is {shown(placement)}; allowed is a Placement, or None")
        prompt_ids = token_ids(prompt)
        if self._tokenizer.is_wordless:
            _refuse_text(sampling)
        media = media_of(prompt)
        form, tenant = sampling.structured, placement.tenant
        grammar = None if form is None else self.compile_grammar(form, tenant)
        arrived_s = monotonic()
        with self._lock:
            request_id = self._next_id
            self._next_id += sampling.n
            fair_start_s = self._fair_order.take(placement.client, len(prompt_ids), arrived_s)
        return Request(
            id=request_id,
            prompt_ids=prompt_ids,
            sampling=sampling,
            placement=placement,
            seed=self._seeds.getrandbits(63) if sampling.seed is None else sampling.seed,
            arrived_s=arrived_s,
            fair_start_s=fair_start_s,
            end_ids=frozenset(sampling.stop_ids)
            | (frozenset() if sampling.ignore_eos else self._end_ids),
            banned=self._banned(sampling.bad_words, tenant),
            grammar=grammar,
            media=None if media is None else media.salted(tenant),
        )

    def compile_grammar(self, structured: StructuredOutput, tenant: str) -> Grammar:
        """Return the form of an answer, compiled; `Engine.compile_grammar` says what it raises."""
        return self._grammars.compile(structured, tenant)

    def close(self) -> None:
        """Compile no more forms."""
        self._grammars.close()


def _refuse_text(sampling: SamplingParams) -> None:
    """Raise InvalidSampling for what looks at an answer's text, where answers have none."""
    allowed = "none for a model without tokenizer files"
    if sampling.stop:
        raise InvalidSampling("stop", sampling.stop, f"{allowed}; token ids can end answers")
    if sampling.bad_words:
        raise InvalidSampling(
            "bad_words", sampling.bad_words, f"{allowed}; logit_bias bans token ids"
        )


def _banned(
    words: Sequence[str],
    tenant: str,  # noqa: ARG001  # what is kept of one tells others nothing of its words
    tokenizer: Tokenizer,
    vocab: int,
) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of bad words, at the beginning of a text and inside it.

    A tokenizer may know tokens that the model does not; these are never drawn, and need no ban.
    """
    found = {
        tuple(tokenizer.encode(space + word, add_special=False))
        for word in words
        for space in ("", " ")
    }
    return tuple(sorted(ids for ids in found if ids and max(ids) < vocab))
