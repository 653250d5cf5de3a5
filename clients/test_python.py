"""Clients and frameworks in Python, each as its own documentation starts it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODEL = "demo"
QUESTION = "Tell me a fable about a fox."
MESSAGES = [{"role": "user", "content": QUESTION}]

# A red disc on white as a data: URL, 128 x 128, PNG.
DISC = (Path(__file__).parent / "disc.txt").read_text().strip()
SEEN = "I see a red circle on a white background."
LOOK = [
    {"type": "text", "text": "What is in the picture?"},
    {"type": "image_url", "image_url": {"url": DISC}},
]

# As frameworks write them: without a word on further properties.
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Paris"]}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
CITIES = ({"city": "Rome"}, {"city": "Paris"})
SHAPE = {
    "type": "object",
    "properties": {"animal": {"enum": ["fox", "crow"]}, "legs": {"enum": [2, 4]}},
    "required": ["animal", "legs"],
    "additionalProperties": False,
}


def test_openai(api_url: str) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=api_url, api_key="none", max_retries=0)
    asked = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "seed": 1}

    whole = client.chat.completions.create(**asked, max_tokens=20)
    events = client.chat.completions.create(**asked, max_tokens=20, stream=True)
    response = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=20)

    streamed = "".join(e.choices[0].delta.content or "" for e in events if e.choices)
    assert whole.choices[0].message.content == streamed != ""
    assert response.output_text
    assert client.responses.retrieve(response.id) == response


def test_openai_async_at_once_and_hanging_up(api_url: str) -> None:
    openai = pytest.importorskip("openai")

    async def ask() -> tuple[int, int]:
        client = openai.AsyncOpenAI(base_url=api_url, api_key="none", max_retries=0)
        create = client.chat.completions.create
        asked = {"model": MODEL, "messages": MESSAGES}
        answers = await asyncio.gather(*(create(**asked, max_tokens=8) for _ in range(20)))
        stream, seen = await create(**asked, stream=True, extra_body={"ignore_eos": True}), 0
        async for _ in stream:
            seen += 1
            if seen == 5:
                break
        await stream.close()
        return len(answers), seen

    assert asyncio.run(ask()) == (20, 5)


def test_openai_pictures(api_url: str) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=api_url, api_key="none", max_retries=0)
    part = {"type": "input_image", "image_url": DISC}
    asked = [{"role": "user", "content": [{"type": "input_text", "text": LOOK[0]["text"]}, part]}]

    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": LOOK}], temperature=0, max_tokens=20
    )
    response = client.responses.create(
        model=MODEL, input=asked, temperature=0, max_output_tokens=20
    )

    assert (chat.choices[0].message.content, response.output_text) == (SEEN, SEEN)


def test_openai_structured_output(api_url: str) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=api_url, api_key="none", max_retries=0)
    form = {"name": "animal", "schema": SHAPE, "strict": True}

    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        response_format={"type": "json_schema", "json_schema": form},
        max_tokens=200,
    )

    assert json.loads(answer.choices[0].message.content)["animal"] in ("fox", "crow")


def test_openai_without_v1_in_the_base_url_is_told_the_path(server_url: str) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=server_url, api_key="none", max_retries=0)

    with pytest.raises(openai.NotFoundError, match="did you mean '/v1/chat/completions'"):
        client.chat.completions.create(model=MODEL, messages=MESSAGES)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_openai_tools(tools_url: str, choice: Any) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{tools_url}/v1", api_key="none", max_retries=0)
    asked = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS, "max_tokens": 300}

    (call, *_) = (
        client.chat.completions.create(**asked, tool_choice=choice).choices[0].message.tool_calls
    )
    streamed = ""
    for event in client.chat.completions.create(
        **asked, tool_choice={"type": "function", "function": {"name": "weather"}}, stream=True
    ):
        for piece in event.choices[0].delta.tool_calls or () if event.choices else ():
            streamed += piece.function.arguments or ""

    assert json.loads(call.function.arguments) in CITIES
    assert json.loads(streamed) in CITIES


def test_anthropic_pictures_and_tools(server_url: str, tools_url: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    seeing = anthropic.Anthropic(base_url=server_url, api_key="none", max_retries=0)
    calling = anthropic.Anthropic(base_url=tools_url, api_key="none", max_retries=0)
    data = {"type": "base64", "media_type": "image/png", "data": DISC.partition(",")[2]}
    look = [{"type": "text", "text": LOOK[0]["text"]}, {"type": "image", "source": data}]

    seen = seeing.messages.create(
        model=MODEL, max_tokens=20, messages=[{"role": "user", "content": look}]
    )
    called = calling.messages.create(
        model=MODEL,
        max_tokens=300,
        messages=MESSAGES,
        tools=[{"name": "weather", "input_schema": CITY}],
        tool_choice={"type": "any"},
    )

    assert seen.content[0].text
    assert called.stop_reason == "tool_use"
    assert called.content[-1].input in CITIES


def test_anthropic(server_url: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=server_url, api_key="none", max_retries=0)
    asked = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 20}

    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        pieces = list(stream.text_stream)

    assert whole.content[0].text
    assert len(pieces) > 5


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_litellm(api_url: str, server_url: str, kind: str) -> None:
    litellm = pytest.importorskip("litellm")
    base = api_url if kind == "openai" else server_url

    answer = litellm.completion(
        model=f"{kind}/{MODEL}",
        api_base=base,
        api_key="none",
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=20,
    )

    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 20


def test_litellm_pictures_tools_and_texts(api_url: str, tools_url: str, texts_url: str) -> None:
    litellm = pytest.importorskip("litellm")
    asked = {"model": f"hosted_vllm/{MODEL}", "api_key": "none", "max_tokens": 300}

    seen = litellm.completion(
        **asked, api_base=api_url, temperature=0, messages=[{"role": "user", "content": LOOK}]
    )
    called = litellm.completion(
        **asked, api_base=f"{tools_url}/v1", messages=MESSAGES, tools=TOOLS, tool_choice="required"
    )
    vectors = litellm.embedding(
        model="openai/embed", api_base=texts_url, api_key="none", input=["the crow", "the fox"]
    )

    assert seen.choices[0].message.content == SEEN
    assert json.loads(called.choices[0].message.tool_calls[0].function.arguments) in CITIES
    assert len(vectors.data) == 2


def test_litellm_knows_a_prompt_that_is_too_long(api_url: str) -> None:
    litellm = pytest.importorskip("litellm")

    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(
            model=f"openai/{MODEL}",
            api_base=api_url,
            api_key="none",
            messages=[{"role": "user", "content": "word " * 9000}],
        )


def test_langchain(api_url: str, server_url: str) -> None:
    openai = pytest.importorskip("langchain_openai")
    anthropic = pytest.importorskip("langchain_anthropic")
    models = (
        openai.ChatOpenAI(model=MODEL, base_url=api_url, api_key="none", max_tokens=20),
        openai.ChatOpenAI(
            model=MODEL, base_url=api_url, api_key="none", max_tokens=20, use_responses_api=True
        ),
        anthropic.ChatAnthropic(
            model=MODEL, base_url=server_url, api_key="none", max_tokens=20
        ),
    )  # fmt: skip

    for model in models:
        assert model.invoke(QUESTION).text
        assert len(list(model.stream(QUESTION))) > 5


def test_langchain_pictures_tools_forms_and_texts(
    api_url: str, tools_url: str, texts_url: str
) -> None:
    openai = pytest.importorskip("langchain_openai")
    asked = {"model": MODEL, "api_key": "none", "max_tokens": 300, "temperature": 0}
    seeing = openai.ChatOpenAI(**asked, base_url=api_url)
    calling = openai.ChatOpenAI(**asked, base_url=f"{tools_url}/v1")
    embedder = openai.OpenAIEmbeddings(
        model="embed", base_url=texts_url, api_key="none", check_embedding_ctx_length=False
    )

    formed = seeing.with_structured_output({"title": "animal", **SHAPE}).invoke(QUESTION)
    (call,) = calling.bind_tools(TOOLS, tool_choice="weather").invoke(QUESTION).tool_calls

    assert seeing.invoke([("user", LOOK)]).text == SEEN
    assert formed["animal"] in ("fox", "crow")
    assert call["args"] in CITIES
    assert len(embedder.embed_documents(["the crow", "the fox"])) == 2


def test_openai_embeddings(texts_url: str) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=texts_url, api_key="none", max_retries=0)

    packed = client.embeddings.create(model="embed", input=["the crow", "the fox"])
    plain = client.embeddings.create(model="embed", input="the crow", encoding_format="float")

    assert packed.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)


def test_llama_index(api_url: str) -> None:
    module = pytest.importorskip("llama_index.llms.openai_like")
    model = module.OpenAILike(
        model=MODEL, api_base=api_url, api_key="none", is_chat_model=True, max_tokens=20
    )

    assert model.complete(QUESTION).text
    assert [piece.delta for piece in model.stream_complete(QUESTION)]


def test_llm(api_url: str, tmp_path: Path) -> None:
    pytest.importorskip("llm")
    models = f"- model_id: mine\n  model_name: {MODEL}\n  api_base: {api_url}\n"
    (tmp_path / "extra-openai-models.yaml").write_text(models)

    done = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "mine", "-o", "max_tokens", "20", QUESTION],
        env=os.environ | {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
