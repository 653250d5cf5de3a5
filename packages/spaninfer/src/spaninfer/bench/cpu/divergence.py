"""The divergence that a weight format costs a trained model, against float32.

The bundled model reads answers that it wrote itself, as the prompt of one step and token by token,
which kernels for many rows and for one compute. The figure is the Kullback-Leibler divergence of
the next token's distribution in a format from that in float32, in nats, its mean over positions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Final

import numpy as np
import spaninfer_demo
from numpy.typing import NDArray
from spaninfer_engine import Engine, EngineConfig, SamplingParams, tools

from spaninfer.bench.cpu.formats import PeerFormat, Setting
from spaninfer.bench.cpu.gguf_file import write_gguf
from spaninfer.bench.cpu.llama import Llama

Logits = NDArray[np.float32]
Text = tuple[int, ...]

TOKENS: Final = 512  # of a text
REQUESTS: Final = (  # of one text, formats' divergences differ by up to a third either way
    "Write a long story in chapters about a river and a kite.",
    "Tell me a story about a robot who was lonely.",
    "Tell me a fable about a fox and a crane.",
    "Write a letter from a pirate to his grandmother.",
    "Tell me a story about a girl and a lighthouse.",
    "Write a long story about two brothers and a mountain.",
    "Tell me a story about a dragon who was afraid of the dark.",
    "Write a letter from a child to the moon.",
    "Tell me a fable about a tortoise and a swallow.",
    "Write a long story in chapters about a clockmaker and a storm.",
    "Tell me a story about a boy who found a map.",
    "Write a long story about a baker and a lost ring.",
    "Tell me a story about an old bear in winter.",
    "Write a letter from a sailor to his dog.",
    "Tell me a fable about a mouse and a bell.",
    "Write a long story in chapters about a garden and a well.",
    "Tell me a story about a princess who could not sleep.",
    "Write a long story about three sisters and a bridge.",
    "Tell me a story about a train that flew.",
    "Write a letter from a knight to his horse.",
    "Tell me a fable about a wolf and a candle.",
    "Write a long story in chapters about a forest and a drum.",
    "Tell me a story about a painter without colours.",
    "Write a long story about a fisherman and a star.",
)
"""What the texts answer. Six leave a mean with a standard error of a sixth, 24 of a twelfth."""


def divergence(exact: Logits, logits: Logits) -> float:
    """Return the mean over rows of the divergence of softmax(logits[T V]) from softmax(exact)."""
    p, q = _log_softmax(exact), _log_softmax(logits)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


@cache
def divergence_of(setting: Setting, rows: int) -> float:
    """Return that of an engine of ours, `rows` tokens of a text in a step."""
    return _mean(logits_of(texts(), rows, **setting.asked))


def divergence_of_llama(library: ModuleType, format: PeerFormat, rows: int, threads: int) -> float:
    """Return that of llama.cpp with a file in a format, `rows` tokens of a text in a step."""
    with TemporaryDirectory() as home:
        path = Path(home, "model.gguf")
        write_decoder(path, format)
        with Llama(library, path, threads=threads, requests=1, context=TOKENS) as llama:
            return _mean(llama.logits(text, rows) for text in texts())


def write_decoder(path: Path, format: PeerFormat) -> None:
    """Write the bundled model's decoder, which reads texts like a Qwen3 model, as a GGUF file."""
    folder = spaninfer_demo.path()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with tools.open_checkpoint(folder) as checkpoint:
        read = checkpoint.reader.read
        write_gguf(
            path,
            {**config["text_config"], "model_type": "qwen3"},
            format,
            lambda name: np.asarray(read(name_in_whole(name)), np.float32),
        )


def name_in_whole(name: str) -> str:
    """Return the name in the bundled model of a tensor of its decoder.

    >>> name_in_whole("model.norm.weight")
    'model.language_model.norm.weight'
    """
    return name.replace("model.", "model.language_model.", 1)


def _mean(logits: Iterable[Logits]) -> float:
    return float(np.mean([divergence(*pair) for pair in zip(_exact(), logits, strict=True)]))


@cache
def texts() -> tuple[Text, ...]:
    """Return texts of TOKENS tokens: each of REQUESTS, and what the bundled model answers.

    All are answered at once: 24 rows in a step, where one after the other takes ten times as long.
    """
    with Engine(EngineConfig(model="demo", backend="cpu", dtype="float32")) as engine:
        prompts = [
            list(engine.encode_chat([{"role": "user", "content": request}])) for request in REQUESTS
        ]
        answers = [
            engine.start_request(
                prompt, SamplingParams(max_tokens=TOKENS, ignore_eos=True, seed=seed)
            )[1]
            for seed, prompt in enumerate(prompts)
        ]
        return tuple(
            tuple(prompt + [token for output in outputs for token in output.token_ids])[:TOKENS]
            for prompt, outputs in zip(prompts, answers, strict=True)
        )


@cache
def _exact() -> tuple[Logits, ...]:
    """Return the logits of float32: 200 MB, kept for all formats."""
    return tuple(logits_of(texts(), TOKENS, backend="cpu", dtype="float32"))


def logits_of(texts: Sequence[Text], rows: int, **options: Any) -> Iterator[Logits]:
    """Yield the bundled model's logits[T V] of each text on a CPU, `rows` tokens in a step.

    `options` are fields of EngineConfig.
    """
    return tools.logits_of(EngineConfig(model=spaninfer_demo.path(), **options), texts, rows)


def _log_softmax(logits: Logits) -> NDArray[np.float64]:
    shifted = np.float64(logits) - logits.max(-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result
