"""The bundled model writes what schemas ask for: greedy, sampled, streamed, and beside others."""

from __future__ import annotations

import json
import os
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field
from spaninfer import Engine, InvalidGrammar, SamplingParams, StructuredOutput

SUITE = Path(os.environ["SPANINFER_TEST_DATA"]) / "text/json_schema_test_suite/draft2020-12"
SAMPLED = ("anyOf", "const", "enum", "items", "maxItems", "maximum", "minimum", "pattern",
           "prefixItems", "properties", "required", "type")  # fmt: skip
MAX_TOKENS = 160  # of answers without an end of their own, such as any array


class Kind(Enum):
    CAT = "cat"
    DOG = "dog"


class Animal(BaseModel, extra="forbid"):
    name: str = Field(max_length=12)
    kind: Kind
    age: int | None = Field(ge=0, le=30)


class Story(BaseModel, extra="forbid"):
    title: str = Field(max_length=30)
    animals: list[Animal] = Field(min_length=1, max_length=2)
    is_true: bool


@pytest.fixture(scope="module")
def engine() -> Any:
    with Engine("demo", memory="64MiB", max_len=512) as engine:
        yield engine


def schemas() -> list[dict[str, Any]]:
    """The schemas of the suite's sample."""
    paths = [SUITE / f"{name}.json" for name in SAMPLED]
    if not SUITE.is_dir():
        pytest.skip(f"needs {SUITE}")
    return [
        group["schema"]
        for path in paths
        for group in json.loads(path.read_text(encoding="utf-8"))
        # Python's re, and so the validator, does not know \\p
        if isinstance(group["schema"], dict) and r"\p" not in json.dumps(group["schema"])
    ]


@pytest.mark.model
def test_the_model_writes_an_instance_of_every_schema_that_is_accepted(engine: Engine) -> None:
    accepted = []
    for schema in schemas():
        form = StructuredOutput(json_schema=schema)
        try:
            engine.compile_grammar(form)
        except InvalidGrammar:
            continue
        accepted.append((schema, form))
    prompts = ["Once upon a time"] * len(accepted)
    greedy = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    drawn = SamplingParams(temperature=1.0, seed=3, max_tokens=MAX_TOKENS)
    ended = 0
    for sampling in (greedy, drawn):
        each = [
            SamplingParams(
                temperature=sampling.temperature,
                seed=sampling.seed,
                max_tokens=MAX_TOKENS,
                structured=form,
            )
            for _, form in accepted
        ]
        for (schema, _), answer in zip(accepted, engine.generate(prompts, each), strict=True):
            if answer.finish_reason.value == "stop":
                ended += 1
                Draft202012Validator(schema).validate(json.loads(answer.text))
    assert len(accepted) > 60
    assert ended > len(accepted)  # of two answers each


def test_a_pydantic_model_is_filled_and_free_neighbours_stay_the_same(engine: Engine) -> None:
    free = SamplingParams(max_tokens=40, seed=5)
    alone = engine.generate(["Once upon a time", "The dog"], free)
    story = SamplingParams(structured=StructuredOutput(json_schema=Story), max_tokens=400, seed=9)
    answers = engine.generate(
        ["Once upon a time", "A story:", "The dog", "A cat"], [free, story, free, story]
    )

    assert [answers[0].token_ids, answers[2].token_ids] == [each.token_ids for each in alone]
    for answer in (answers[1], answers[3]):
        assert Story.model_validate_json(answer.text).animals


def test_openais_client_parses_stories_of_a_server_process(server: Any) -> None:
    with server.client() as client:
        asked = {
            "model": "demo",
            "messages": [{"role": "user", "content": "Tell me a story."}],
            "response_format": Story,
            "max_tokens": 300,
        }
        answer = client.chat.completions.parse(**asked, n=2, seed=4)
        assert all(choice.message.parsed.animals for choice in answer.choices)
        with client.chat.completions.stream(**asked, seed=4) as stream:
            text = "".join(event.delta for event in stream if event.type == "content.delta")
        assert Story.model_validate_json(text) == answer.choices[0].message.parsed
