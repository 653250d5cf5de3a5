"""Embedding and ranking jobs: from a body to texts, and from rows to the answer."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json
from spaninfer_engine.serving import Text

from spaninfer_serving.admission.fair_queue import Client
from spaninfer_serving.ids import new_hex
from spaninfer_serving.jobs.service import Service
from spaninfer_serving.requests.parse_pool import Check
from spaninfer_serving.settings import BODY_BYTES
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.texts import (
    ClassifyRequest,
    ClassifyResponse,
    Document,
    EmbeddingRequest,
    Label,
    RankedDocument,
    RerankRequest,
    RerankResponse,
    Score,
    ScoreRequest,
    ScoreResponse,
    TextFields,
    Texts,
    TextUsage,
)

Rows = NDArray[np.float32]

MAX_TEXTS = 2048  # of a request: OpenAI's own limit
PIECE_NUMBERS = 1 << 14  # of vectors, whose JSON is made at once: 6 ms of one core


@dataclass(frozen=True, slots=True)
class TextJob:
    """Texts of a request as token ids, whose they are, and for which model."""

    texts: tuple[Text, ...]
    client: Client
    model: str  # by the name that was asked for

    @property
    def usage(self) -> TextUsage:
        """Return how many tokens they have."""
        total = sum(len(text.ids) for text in self.texts)
        return TextUsage(prompt_tokens=total, total_tokens=total)


@dataclass(frozen=True, slots=True)
class TextService:
    """The part of a service that the routes about texts use."""

    service: Service

    def ask_texts(
        self, body: EmbeddingRequest | ClassifyRequest, client: Client, check: Check
    ) -> TextJob:
        """Return the texts of a request; raises Problem, an engine error, or what `check` does."""
        name = self.service.named(body.model)
        engine = self.service.engine
        texts: Sequence[str | Sequence[int]] = texts_of(body.input)
        self._check_count(len(texts), "input")
        given: dict[str, Any] = {}
        if isinstance(body, EmbeddingRequest):
            _check_dimensions(body.dimensions, engine.width)
            _check_prompt(body, len(texts))
            given |= {"prompt_name": body.prompt_name, "prompt": body.prompt}
        encoded = []
        for number, text in enumerate(texts):
            check()
            if isinstance(text, str):
                self._probe((given.get("prompt") or "") + text, body)
            truncate = body.truncate_prompt_tokens is not None
            encoded.append(engine.encode_text(text, number=number, truncate=truncate, **given))
        return TextJob(tuple(encoded), client, name)

    def ask_score(self, body: ScoreRequest, client: Client, check: Check) -> TextJob:
        """Return the pairs of a request, as `ask_texts` does."""
        queries, documents = pairs_of(body)
        return self._pairs(queries, documents, body, client, check)

    def ask_rerank(self, body: RerankRequest, client: Client, check: Check) -> TextJob:
        """Return the pairs of a request, as `ask_texts` does."""
        documents = [document_text(each) for each in body.documents]
        return self._pairs([body.query] * len(documents), documents, body, client, check)

    def _pairs(
        self,
        queries: Sequence[str],
        documents: Sequence[str],
        body: TextFields,
        client: Client,
        check: Check,
    ) -> TextJob:
        name = self.service.named(body.model)
        self._check_count(len(documents), "documents")
        for text in {*queries, *documents}:
            self._probe(text, body)
        check()
        truncate = body.truncate_prompt_tokens is not None
        texts = self.service.engine.encode_pairs(queries, documents, truncate=truncate)
        return TextJob(tuple(texts), client, name)

    async def rows(self, job: TextJob) -> Rows:
        """Return the rows of a job's texts, and note how long they took."""
        arrived_s = monotonic()
        rows, begun_s = await self.service.client.rows(job.client, job.texts)
        lengths = [len(text.ids) for text in job.texts]
        self.service.metrics.note_texts(lengths, begun_s - arrived_s, monotonic() - arrived_s)
        return rows

    async def embeddings(self, body: EmbeddingRequest, job: TextJob) -> Iterator[str]:
        """Return the answer of /v1/embeddings, as JSON in pieces."""
        rows = await self.rows(job)
        vectors = self.service.engine.vectors_of(
            rows, normalize=body.normalize, dimensions=body.dimensions
        )
        return _pieces(vectors, body.encoding_format, job.model, job.usage)

    async def labels(self, _body: ClassifyRequest, job: TextJob) -> ClassifyResponse:
        """Return the answer of /classify."""
        engine = self.service.engine
        probabilities = engine.probabilities_of(await self.rows(job))
        names = engine.labels
        data = [
            Label(
                index=index,
                label=names[int(row.argmax())],
                probs=row.tolist(),
                num_classes=len(names),
            )
            for index, row in enumerate(probabilities)
        ]
        return ClassifyResponse(**_meta("classify", job), data=data, usage=job.usage)

    async def scores(self, body: ScoreRequest, job: TextJob) -> ScoreResponse:
        """Return the answer of /score."""
        count = len(pairs_of(body)[1])
        scores = self.service.engine.scores_of(await self.rows(job), count).tolist()
        data = [Score(index=index, score=score) for index, score in enumerate(scores)]
        return ScoreResponse(**_meta("score", job), data=data, usage=job.usage)

    async def ranking(self, body: RerankRequest, job: TextJob) -> RerankResponse:
        """Return the answer of /rerank: equal scores in the order of the request."""
        rows = await self.rows(job)
        scores = self.service.engine.scores_of(rows, len(body.documents)).tolist()
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        results = [
            RankedDocument(
                index=index,
                document={"text": document_text(body.documents[index])}
                if body.return_documents
                else None,
                relevance_score=scores[index],
            )
            for index in order[: body.top_n or None]
        ]
        meta = _meta("rerank", job)
        return RerankResponse(id=meta["id"], model=meta["model"], usage=job.usage, results=results)

    def _check_count(self, count: int, param: str) -> None:
        most = min(MAX_TEXTS, self.service.engine.resolved.max_waiting)
        if not 1 <= count <= most:
            raise Problem(400, f"{param} holds {count} texts; allowed is 1 to {most}", param=param)

    def _probe(self, text: str, body: TextFields) -> None:
        self.service.probe(text, "query" if isinstance(body, RerankRequest) else "input")


def texts_of(given: Texts) -> list[str] | list[list[int]]:
    """Return texts as a list, all text or all token ids."""
    match given:
        case str(text):
            return [text]
        case [int(), *_] as ids:
            return [cast(list[int], ids)]
        case many:
            return cast(list[str] | list[list[int]], many)


def pairs_of(body: ScoreRequest) -> tuple[list[str], list[str]]:
    """Return the first and the second texts of pairs; Problem where they make none."""
    first = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    second = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    if len(first) == 1:
        return first * len(second), second
    if len(first) != len(second):
        raise Problem(
            400,
            f"text_1 has {len(first)} texts and text_2 {len(second)}; send one text_1, or as many "
            "as text_2 has",
            param="text_1",
        )
    return first, second


def document_text(document: str | Document) -> str:
    """Return the text of a document in either form."""
    return document if isinstance(document, str) else document.text


def _check_prompt(body: EmbeddingRequest, num_texts: int) -> None:
    """Refuse a prompt beside a name of one, and one that would be tokenised for too long."""
    if body.prompt is None:
        return
    if body.prompt_name is not None:
        raise Problem(
            400,
            "prompt and prompt_name both set the text in front of inputs; send one of them",
            param="prompt",
        )
    num_chars = len(body.prompt) * num_texts
    if num_chars > BODY_BYTES:
        raise Problem(
            400,
            f"prompt has {len(body.prompt)} characters, and {num_chars} in front of {num_texts} "
            f"texts; at most {BODY_BYTES}; shorten it, or send fewer texts",
            param="prompt",
        )


def _meta(prefix: str, job: TextJob) -> dict[str, Any]:
    return {"id": f"{prefix}-{new_hex()}", "created": int(time.time()), "model": job.model}


def _check_dimensions(dimensions: int | None, width: int) -> None:
    if dimensions is not None and not 1 <= dimensions <= width:
        raise Problem(
            400, f"dimensions is {dimensions}; allowed is 1 to {width}", param="dimensions"
        )


def _pieces(vectors: Rows, encoding: str, model: str, usage: TextUsage) -> Iterator[str]:
    """Yield the JSON of vectors some at a time: while it is made, no step is launched."""
    some = max(1, PIECE_NUMBERS // vectors.shape[1])
    yield '{"object":"list","data":['
    for first in range(0, len(vectors), some):
        items = [
            {"object": "embedding", "index": index, "embedding": _shown(vectors[index], encoding)}
            for index in range(first, min(len(vectors), first + some))
        ]
        yield ("," if first else "") + to_json(items).decode()[1:-1]
    yield f'],"model":{to_json(model).decode()},"usage":{usage.model_dump_json()}}}'


def _shown(vector: Rows, encoding: str) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers
