"""Texts that become vectors, scores or labels, as they travel."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from spaninfer_serving.wire.fields import Integers, RequestFields, Strings
from spaninfer_serving.wire.structured import refused

Texts = str | Strings | Integers | Annotated[list[Integers], Field(fail_fast=True)]
"""A text or token ids, or a list of either."""


class TextFields(RequestFields):
    """The common fields of requests about texts."""

    model: str | None = None
    user: str | None = None  # accepted because clients send it
    truncate_prompt_tokens: Literal[-1] | None = None  # -1: texts lose what the model cannot take


class EmbeddingRequest(TextFields):
    """The body of POST /v1/embeddings."""

    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    normalize: bool | None = None  # None: what the model's files say
    prompt_name: str | None = None  # of the prompts of sentence-transformers
    prompt: str | None = None  # in front of every text, in place of one with a name


class ClassifyRequest(TextFields):
    """The body of POST /classify."""

    input: Texts


_TEXT_NAMES = {"queries": "text_1", "documents": "text_2"}
"""Other names of the texts of a score."""


class ScoreRequest(TextFields):
    """The body of POST /score: one text with each of others, or as many with one each."""

    text_1: str | Strings
    text_2: str | Strings

    @model_validator(mode="before")
    @classmethod
    def _by_other_names(cls, body: object) -> object:
        """Take `queries` and `documents` for the same."""
        if not isinstance(body, dict):
            return body
        for other, name in _TEXT_NAMES.items():
            if other in body and name in body:
                raise refused(other, "unsupported_parameter", f"says the same as {name}; send one")
        return {_TEXT_NAMES.get(name, name): value for name, value in body.items()}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Describe both names, of which one has to be given."""
        schema = super().__get_pydantic_json_schema__(core, handler)
        described = handler.resolve_ref_schema(schema)
        of_object = described["properties"]
        of_object.update({other: of_object[name] for other, name in _TEXT_NAMES.items()})
        described["required"] = []
        described["allOf"] = [
            {"oneOf": [{"required": [name]}, {"required": [other]}]}
            for other, name in _TEXT_NAMES.items()
        ]
        return schema


class Document(BaseModel):
    """A document with its text, in the form of a table."""

    text: str


class RerankRequest(TextFields):
    """The body of POST /rerank."""

    not_supported: ClassVar = {"max_tokens_per_doc": (None,), "max_chunks_per_doc": (None,)}

    query: str
    documents: Annotated[list[str | Document], Field(fail_fast=True, min_length=1)]
    top_n: Annotated[int, Field(ge=0)] | None = None  # 0 or None: all
    return_documents: bool = True


class TextUsage(BaseModel):
    """Token counts of a request about texts."""

    prompt_tokens: int
    total_tokens: int


class Embedding(BaseModel):
    """A vector: its numbers, or their little-endian float32 in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingResponse(BaseModel):
    """The answer of /v1/embeddings."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: TextUsage


class Label(BaseModel):
    """The most likely label of a text, and the probabilities of all, in the model's order."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyResponse(BaseModel):
    """The answer of /classify."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Label]
    usage: TextUsage


class Score(BaseModel):
    """A similarity score; larger is more similar."""

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreResponse(BaseModel):
    """The answer of /score."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: TextUsage


class RankedDocument(BaseModel):
    """A document's place in the request, its score, and its text if requested."""

    index: int
    document: dict[str, Any] | None = None
    relevance_score: float


class RerankResponse(BaseModel):
    """The answer of /rerank: the best first."""

    id: str
    model: str
    usage: TextUsage
    results: list[RankedDocument]
