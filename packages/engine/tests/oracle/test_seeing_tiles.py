"""From pictures of one size to greedy tokens, beside transformers' whole models and processors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import TOLERANCE, Oracle
from seeing import drawn
from seeing_tiles import TILED_FAMILIES, gemma_inputs, save_tiled
from spaninfer_engine import Engine
from spaninfer_engine.errors import RequestError

torch = pytest.importorskip("torch")

BACKENDS = ("reference", "torch", "cpu")
IMAGE = 260
GREEDY = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True,
          "logit_bias": {IMAGE: -100.0}, "logprobs": 5}  # fmt: skip
LOGITS = 3.0  # about the deviation of logits


class Seeing:
    """A model in a folder, and engines on it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.oracle = save_tiled(name, folder)

    def engine(self, backend: str, **options: Any) -> Engine:
        given = {"max_len": 768, "max_running": 4, "memory": "16MiB", "encoder_memory": "1MiB"}
        return Engine(self.folder, backend=backend, **{**given, **options})


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return Seeing("gemma3_vl", tmp_path_factory.mktemp("gemma"))


@pytest.fixture(scope="module", params=BACKENDS)
def running(request: pytest.FixtureRequest, gemma: Seeing) -> Iterator[Engine]:
    with gemma.engine(request.param, step_tokens=24) as engine:
        yield engine


def image(height: int, width: int, seed: int = 0) -> dict[str, Any]:
    return {"type": "image", "image": drawn(height, width, seed)}


def user(*content: Any) -> dict[str, Any]:
    parts = [{"type": "text", "text": each} if isinstance(each, str) else each for each in content]
    return {"role": "user", "content": parts}


CONVERSATIONS: dict[str, Sequence[Any]] = {
    "one image": [user("What is this? ", image(56, 84))],
    "images next to each other": [
        user(image(28, 28), image(84, 140, 1), "?"),
        {"role": "assistant", "content": "A cat."},
        user("And\n", image(300, 30, 2), "\nor", image(28, 28), "!"),
    ],
    "no media": [user("Hello!")],
}


def pictures_of(messages: Sequence[Any]) -> list[Any]:
    return [
        part["image"]
        for message in messages
        if not isinstance(message["content"], str)
        for part in message["content"]
        if part["type"] == "image"
    ]


def assert_as_expected(seeing: Seeing, messages: Sequence[Any], told: Any) -> None:
    """Compare prompt, greedy tokens and their log-probabilities with transformers' own."""
    given = gemma_inputs(seeing.folder, rendered(seeing, messages), pictures_of(messages))
    ids = given["input_ids"][0].tolist()
    tokens, logprobs = greedy(seeing.oracle, given, len(told.token_ids))
    assert list(told.prompt_ids) == ids
    assert list(told.token_ids) == tokens
    found = [dict(each.top)[token] for each, token in zip(told.logprobs, tokens, strict=True)]
    np.testing.assert_allclose(found, logprobs, atol=TOLERANCE * LOGITS)


def rendered(seeing: Seeing, messages: Sequence[Any]) -> str:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(seeing.folder)
    bare = [
        {**each, "content": each["content"] if isinstance(each["content"], str) else [
            {"type": part["type"], part["type"]: part["text"] if part["type"] == "text" else ""}
            for part in each["content"]]}
        for each in messages
    ]  # fmt: skip
    text: str = tokenizer.apply_chat_template(bare, tokenize=False, add_generation_prompt=True)
    return text


def greedy(
    oracle: Oracle, given: dict[str, Any], count: int
) -> tuple[list[int], list[float]]:
    """Return greedy tokens and their log-probabilities, each from a pass over all before it."""
    found = []
    ids = given.pop("input_ids")
    prompt_len = ids.shape[1]
    types = given.pop("token_type_ids", torch.zeros_like(ids))
    given.pop("attention_mask", None)
    for _ in range(count):
        with torch.no_grad():
            made = oracle.model(input_ids=ids, token_type_ids=types, use_cache=False, **given)
        logits = made.logits[0, -1]
        token = logits.index_fill(0, torch.tensor([IMAGE]), -torch.inf).argmax()
        found.append(float(logits.log_softmax(0)[token]))
        ids = torch.cat([ids, token[None, None]], 1)
        types = torch.nn.functional.pad(types, (0, 1))
    tokens: list[int] = ids[0, prompt_len:].tolist()
    return tokens, found


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_greedy_tokens_are_those_of_transformers(
    name: str, gemma: Seeing, running: Engine
) -> None:
    told = running.chat(CONVERSATIONS[name], **GREEDY)

    assert_as_expected(gemma, CONVERSATIONS[name], told)


def test_a_prefix_that_ends_within_an_image_is_reused(gemma: Seeing) -> None:
    asked = [user(image(84, 84), tail) for tail in ("What?", "Where?")]
    with gemma.engine("cpu", span_len=8) as engine:
        for messages in ([asked[0]], [asked[1]], [asked[0]]):
            told = engine.chat(messages, **GREEDY)
            assert_as_expected(gemma, messages, told)
        stats = engine.stats()

    assert stats.encoded_media == 1
    assert stats.prefix_hit_tokens > 0


def test_images_beside_decodes_and_each_other_are_seen_whole(gemma: Seeing) -> None:
    asked = [[user("Tell me.")]] + [[user(image(56, 56, seed), "What?")] for seed in (3, 4, 3)]
    with gemma.engine("cpu", step_tokens=17, span_len=8) as engine:
        told = engine.chat(asked, **{**GREEDY, "max_tokens": 20})

    for messages, answer in zip(asked, told, strict=True):
        assert_as_expected(gemma, messages, answer)


def test_preempted_requests_see_their_images_again(gemma: Seeing) -> None:
    asked = [[user(image(84, 84, seed), "What is this?")] for seed in range(3)]
    spans = 22 * 8 * 4 * 2 * 2 * 24 * 4  # of two requests and a half
    with gemma.engine("cpu", span_len=8, max_len=112, memory=spans) as engine:
        told = engine.chat(asked, **{**GREEDY, "max_tokens": 40})
        assert engine.stats().preemptions > 0

    for messages, answer in zip(asked, told, strict=True):
        assert_as_expected(gemma, messages, answer)


def test_what_an_image_that_is_seen_whole_forbids_is_refused_by_name(gemma: Seeing) -> None:
    messages = [user(image(84, 84), "What?")]
    with gemma.engine("cpu", step_tokens=15) as engine:
        with pytest.raises(RequestError, match="step_tokens of 16 or more"):
            engine.chat(messages, **GREEDY)
    with gemma.engine("cpu") as engine:
        with pytest.raises(RequestError, match="prompt_logprobs.*see later ones"):
            engine.chat(messages, **GREEDY, prompt_logprobs=1)
