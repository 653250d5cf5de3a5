"""Structured output of the bundled model: greedy, sampled, streamed, and in a mixed batch."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft7Validator, Draft202012Validator
from pydantic import BaseModel, Field
from spaninfer import Engine, InvalidGrammar, SamplingParams, StructuredOutput

SUITE = Path(os.environ["SPANINFER_TEST_DATA"]) / "text/json_schema_test_suite"
VALIDATORS = {"draft2020-12": Draft202012Validator, "draft7": Draft7Validator}
MAX_TOKENS = 450  # almost all answers end before; some go on for ever, as an array in an array does
MIN_ENDED = 0.85
SAMPLE = 4  # one schema of so many
TAKEN = {"draft7/ref.json[6]": "an $id beside a $ref is to be ignored, and is not"}


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


@dataclass(frozen=True)
class Accepted:
    """A schema of the suite that is accepted, and where it stands there."""

    place: str
    draft: str
    schema: dict[str, Any]
    form: StructuredOutput

    def check(self, text: str) -> None:
        """Fail where a text is no instance, by a library of its own, with numbers as written."""
        written = json.dumps(self.schema)
        if self.place in TAKEN or r"\p" in written:  # which Python's re does not know
            return
        schema = json.loads(written, parse_float=Decimal)
        VALIDATORS[self.draft](schema).validate(json.loads(text, parse_float=Decimal))


def accepted_by(engine: Engine) -> list[Accepted]:
    """Return all that is accepted, in the order of the suite."""
    if not SUITE.is_dir():
        pytest.skip(f"needs {SUITE}")
    found = []
    for path in sorted(path for draft in VALIDATORS for path in (SUITE / draft).rglob("*.json")):
        draft = path.relative_to(SUITE).parts[0]
        for number, group in enumerate(json.loads(path.read_text(encoding="utf-8"))):
            if not isinstance(group["schema"], dict):
                continue
            form = StructuredOutput(json_schema=group["schema"])
            with contextlib.suppress(InvalidGrammar):
                engine.compile_grammar(form)
                place = f"{path.relative_to(SUITE)}[{number}]"
                found.append(Accepted(place, draft, group["schema"], form))
    return found


def is_begun(engine: Engine, form: StructuredOutput, token_ids: Sequence[int]) -> bool:
    """Return whether each token is allowed in its turn, by a matcher that has seen none."""
    matcher = engine.compile_grammar(form).matcher(tuple(engine.tokenizer.eos_ids), 0)
    ids, bits = np.array(token_ids, np.int32), np.zeros(-(-engine.vocab_size // 32) * 4, np.uint8)
    for position, token in enumerate(ids):
        matcher.fill(ids[:position], bits)
        if not bits[token // 8] >> token % 8 & 1:
            return False
    return True


@pytest.mark.model
@pytest.mark.parametrize("every", [SAMPLE, pytest.param(1, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("drawn", [{"temperature": 0}, {"temperature": 1.0, "seed": 3}], ids=str)
def test_the_model_writes_an_instance_of_every_schema_that_is_accepted(
    engine: Engine, every: int, drawn: dict[str, Any]
) -> None:
    accepted = accepted_by(engine)
    assert len(accepted) > 400
    asked = accepted[::every]
    each = [SamplingParams(max_tokens=MAX_TOKENS, structured=one.form, **drawn) for one in asked]

    answers = engine.generate(["Once upon a time"] * len(asked), each)

    ended = 0
    for one, answer in zip(asked, answers, strict=True):
        assert answer.finish_reason.value in ("stop", "length"), one.place
        if answer.finish_reason.value == "stop":
            ended += 1
            one.check(answer.text)
        else:
            assert is_begun(engine, one.form, answer.token_ids), one.place
    assert ended >= MIN_ENDED * len(asked)


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
