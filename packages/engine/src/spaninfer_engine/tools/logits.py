"""The logits of given texts, step by step: what formats of weights are compared by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.backends.setup import DeviceSetup
from spaninfer_engine.backends.start import HostStart
from spaninfer_engine.config import EngineConfig
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.program.bind import bind
from spaninfer_engine.program.lower import lower
from spaninfer_engine.request.logprobs import TokenLogprobs
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.run.runner import Runner
from spaninfer_engine.spec.nodes import Decoder
from spaninfer_engine.startup.build import open_on_cpu
from spaninfer_engine.startup.limits import SPAN_LEN
from spaninfer_engine.startup.model import locate
from spaninfer_engine.startup.progress import silent
from spaninfer_engine.step.device import Device
from spaninfer_engine.step.plan import NewSequence, Slice, StepPlan, TableUpdate
from spaninfer_engine.step.sequences import Sequences

Logits = NDArray[np.float32]


def logits_of(
    asked: EngineConfig, texts: Sequence[Sequence[int]], step_tokens: int
) -> Iterator[Logits]:
    """Yield a decoder's logits [T V] of each text on a CPU, `step_tokens` of its tokens in a step.

    Kernels for one token and for many differ: 1 and len(text) are worth comparing.
    """
    path, _ = locate(asked.model)
    with open_checkpoint(path) as checkpoint:
        decoder, ops = open_on_cpu(asked, checkpoint)
        bound = bind(lower(decoder), ops, checkpoint.reader)
    start = HostStart(bound.run, ops, decoder)
    yield from logits_by(lambda setup: start.device(setup, silent), decoder, texts, step_tokens)


def logits_by(
    device_for: Callable[[DeviceSetup], Device],
    decoder: Decoder,
    texts: Sequence[Sequence[int]],
    step_tokens: int,
) -> Iterator[Logits]:
    """Yield the logits [T V] of each text by a decoder on a device."""
    kept, spans = _Kept(), -(-max(map(len, texts)) // SPAN_LEN)
    groups = len(decoder.groups)
    sequences = Sequences(groups, max_len=spans * SPAN_LEN, span_len=SPAN_LEN, num_rows=1)
    device = device_for(DeviceSetup(sequences, (spans,) * groups))
    runner = Runner(device, sequences, kept, vocab=decoder.vocab)
    places = [(group, 0, tuple(range(spans))) for group in range(groups)]
    for number, text in enumerate(texts):
        entered: tuple[NewSequence, ...] = (
            NewSequence(number, np.array(text, np.int32), SamplingParams(), seed=0),
        )
        grown = tuple(TableUpdate(number, *place) for place in places)
        left = (number - 1,) if number else ()
        for start in range(0, len(text), step_tokens):
            stop = min(len(text), start + step_tokens)
            part = Slice(number, start, stop, logits_from=start, samples=False)
            runner.run(StepPlan(start, (part,), entered, grown, left))
            entered, grown, left = (), (), ()
        yield kept.take()


class _Kept:
    """A runner.HostSampler that samples nothing and keeps the logits."""

    def __init__(self) -> None:
        self._logits: list[Logits] = []

    def take(self) -> Logits:
        """Return the logits [T V] since the last time."""
        logits = np.concatenate(self._logits)
        self._logits.clear()
        return logits

    def enter(self, entry: NewSequence) -> None:
        """Do nothing: nothing is sampled."""

    def leave(self, seq_id: int) -> None:
        """Do nothing."""

    def sample(self, *_: Any) -> Any:
        """Never called: no slice samples."""
        raise AssertionError("a slice that samples")

    def prompt_logprobs(self, _request_id: int, logits: Any, _next_ids: Any) -> TokenLogprobs:
        """Keep a copy: the backend's memory is its own."""
        self._logits.append(np.array(logits, np.float32))
        return TokenLogprobs.empty(0, 0)
