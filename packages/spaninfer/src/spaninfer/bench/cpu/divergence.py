"""What a format of weights costs: how far a trained model's distributions move from float32's.

The bundled model reads answers that it wrote itself, as the prompt of one step and token by token,
which kernels for many rows and for one compute. The figure is the Kullback-Leibler divergence of
the next token's distribution in a format from that in float32, in nats, its mean over positions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Final

import numpy as np
import spaninfer_demo
from numpy.typing import NDArray
from spaninfer_engine import Engine, EngineConfig, SamplingParams
from spaninfer_engine.build import make_ops, resolve_decoder
from spaninfer_engine.compute import checkpoint_dtype, decide_compute
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.machine import this_machine
from spaninfer_engine.plan import Entry, Growth, Slice, StepPlan
from spaninfer_engine.request import TokenLogprob
from spaninfer_engine.run.claim import bind
from spaninfer_engine.run.lower import lower
from spaninfer_engine.run.runner import Runner
from spaninfer_kernels_cpu import Format

from spaninfer.bench.cpu.formats import PeerFormat, options_of
from spaninfer.bench.cpu.gguf_file import write_gguf
from spaninfer.bench.cpu.llama import Llama

Logits = NDArray[np.float32]
Text = tuple[int, ...]

TOKENS: Final = 512  # of a text
_REQUESTS: Final = (  # of one text, formats' divergences differ by up to a third either way
    "Write a long story in chapters about a river and a kite.",
    "Tell me a story about a robot who was lonely.",
    "Tell me a fable about a fox and a crane.",
    "Write a letter from a pirate to his grandmother.",
    "Tell me a story about a girl and a lighthouse.",
    "Write a long story about two brothers and a mountain.",
)
NUM_TEXTS: Final = len(_REQUESTS)
_SPAN_LEN: Final = 32


def divergence(exact: Logits, logits: Logits) -> float:
    """Return the mean over rows of the divergence of softmax(logits[T V]) from softmax(exact)."""
    p, q = _log_softmax(exact), _log_softmax(logits)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def divergence_of(format: Format, rows: int) -> float:
    """Return that of our engine's weights in a format, `rows` tokens of a text in a step."""
    return _mean([logits_of(text, rows, **options_of(format)) for text in texts()])


def divergence_of_llama(library: ModuleType, format: PeerFormat, rows: int, threads: int) -> float:
    """Return that of llama.cpp with a file in a format, `rows` tokens of a text in a step."""
    folder = spaninfer_demo.path()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with TemporaryDirectory() as home, open_checkpoint(folder) as checkpoint:
        path = Path(home, "model.gguf")
        read = checkpoint.reader.read
        write_gguf(path, config, format, lambda name: np.asarray(read(name), np.float32))
        with Llama(library, path, threads=threads, requests=1, context=TOKENS) as llama:
            return _mean([llama.logits(text, rows) for text in texts()])


def _mean(logits: Sequence[Logits]) -> float:
    exact = [_exact(text) for text in texts()]
    return float(np.mean([divergence(*pair) for pair in zip(exact, logits, strict=True)]))


@cache
def texts() -> tuple[Text, ...]:
    """Return texts of TOKENS tokens: a request, and what the bundled model answers."""
    found = []
    with Engine(EngineConfig(model="demo", backend="cpu", dtype="float32")) as engine:
        for seed, request in enumerate(_REQUESTS):
            prompt = list(engine.encode_chat([{"role": "user", "content": request}]))
            sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True, seed=seed)
            _, outputs = engine.start_request(prompt, sampling)
            answer = [token for output in outputs for token in output.token_ids]
            found.append(tuple(prompt + answer)[:TOKENS])
    return tuple(found)


@cache
def _exact(text: Text) -> Logits:
    return logits_of(text, TOKENS, dtype="float32")


def logits_of(text: Text, rows: int, **options: Any) -> Logits:
    """Return the bundled model's logits[T V] on backend cpu, `rows` tokens in a step.

    `options` are fields of EngineConfig.
    """
    asked = EngineConfig(model=spaninfer_demo.path(), backend="cpu", **options)
    with open_checkpoint(asked.model) as checkpoint:
        decoder = resolve_decoder(asked, checkpoint)
        stored_as = checkpoint_dtype(checkpoint.config)
        compute = decide_compute(asked, stored_as, this_machine(with_gpu=False))
        ops = make_ops(compute, decoder.groups, asked, stored_as)
        bound = bind(lower(decoder), ops, checkpoint.reader)
    kept, spans = Kept(), -(-len(text) // _SPAN_LEN)
    runner = Runner(
        *(bound, ops, kept, decoder),
        span_len=_SPAN_LEN,
        num_spans=[spans] * len(decoder.groups),
        max_len=spans * _SPAN_LEN,
        max_running=1,
    )
    entered: tuple[Entry, ...] = (Entry(0, np.array(text, np.int32), SamplingParams(), seed=0),)
    grown = tuple(Growth(0, group, 0, tuple(range(spans))) for group in range(len(decoder.groups)))
    for start in range(0, len(text), rows):
        part = Slice(0, start, min(len(text), start + rows), logits_from=start, draws=False)
        runner.run(StepPlan(start, (part,), entered, grown))
        entered, grown = (), ()
    return np.concatenate(kept.logits)


class Kept:
    """Stands where a sampler would (`runner.Draws`), and draws nothing: it keeps the logits."""

    def __init__(self) -> None:
        self.logits: list[Logits] = []

    def enter(self, entry: Entry) -> None:
        """Take notice of nobody."""

    def leave(self, request_id: int) -> None:
        """Forget nobody."""

    def draw(self, *_: Any) -> Any:
        """Never called: no slice draws."""
        raise AssertionError("a slice without draws")

    def prompt_logprobs(
        self, _request_id: int, logits: Any, _next_ids: Any
    ) -> tuple[TokenLogprob, ...]:
        """Keep a copy: the backend's memory is its own."""
        self.logits.append(np.array(logits, np.float32))
        return ()


def _log_softmax(logits: Logits) -> NDArray[np.float64]:
    shifted = np.float64(logits) - logits.max(-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result
