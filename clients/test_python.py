"""Clients and frameworks in Python, each as its own documentation starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = "demo"
QUESTION = "Tell me a fable about a fox."


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
