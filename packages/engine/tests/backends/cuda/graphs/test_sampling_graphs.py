"""Graphs that hold a step's own sampling, beside plain ones with the same launches behind them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from sys import maxsize
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import spaninfer_demo
from spaninfer_engine import Completion, Engine, SamplingParams
from spaninfer_engine.backends.cuda.graphs import step_graphs
from spaninfer_engine.backends.cuda.graphs.sampling import FEWEST_ROWS, PLAIN
from spaninfer_engine.backends.cuda.graphs.shapes import GraphShape

pytestmark = pytest.mark.gpu

REQUESTS, OUTPUT_LEN = 40, 24
_CONFIG = json.loads((spaninfer_demo.path() / "config.json").read_text())
VOCAB = _CONFIG["text_config"]["vocab_size"]


def _two_thirds(output_ids: Any) -> Any:
    """Return a mask that differs from token to token."""
    return np.arange(VOCAB) % 3 != len(output_ids) % 3


PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "logit_bias": {7: 2.0}}
WAYS: dict[str, Mapping[str, Any]] = {
    "penalties": PENALTIES,
    "typical_p": {"typical_p": 0.8},
    "logprobs": {"logprobs": 5},
    "processed": {"logprobs": 20, "processed_logprobs": True},
    "typical_p logprobs": {"typical_p": 0.8, "logprobs": 0},
    "penalties typical_p": {**PENALTIES, "typical_p": 0.8},
    "penalties processed": {**PENALTIES, "logprobs": 3, "processed_logprobs": True},
    "mask": {"mask": _two_thirds},
    "mask penalties logprobs": {**PENALTIES, "mask": _two_thirds, "logprobs": 2},
    "everything": {**PENALTIES, "typical_p": 0.9, "logprobs": 3, "processed_logprobs": True},
}
CASES = [(way, every) for way in WAYS for every in (1, 8)]

Answers = Mapping[tuple[str, int], list[Completion]]


def _answers(needed: int) -> tuple[Answers, set[GraphShape]]:
    """Return what an engine answers whose graphs sample otherwise after so many steps, and the
    shapes that it replayed.
    """
    replayed: set[GraphShape] = set()

    class Watched(step_graphs.StepGraphs):
        def find(self, *args: Any, **kwargs: Any) -> Any:
            replay = super().find(*args, **kwargs)
            if replay is not None:
                replayed.add(replay.shape)
            return replay

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(step_graphs, "NEEDED", needed)
        patched.setattr(step_graphs, "NEEDED_IDLE", maxsize)
        patched.setattr("spaninfer_engine.backends.cuda.device.StepGraphs", Watched)
        # Requests may be admitted over several steps, and captures move where: logits that depend
        # on the batch differ in their last bits then.
        with Engine(
            spaninfer_demo.path(), backend="cuda", memory="1GiB", batch_invariant=True
        ) as engine:
            answers = {case: _generate(engine, *case) for case in CASES}
    return answers, replayed


def _generate(engine: Engine, way: str, every: int) -> list[Completion]:
    plain = {"temperature": 0.9, "top_p": 0.95, "max_tokens": OUTPUT_LEN, "ignore_eos": True}
    samplings = [
        SamplingParams(**plain, seed=number, **({} if number % every else WAYS[way]))
        for number in range(REQUESTS)
    ]
    return engine.generate([[1, 5 + n % 9, 30 + n] for n in range(REQUESTS)], samplings)


@pytest.fixture(scope="module")
def both() -> tuple[Answers, Answers]:
    own, replayed = _answers(needed=1)
    behind, plain = _answers(needed=maxsize)
    assert {shape.sampling for shape in plain} == {PLAIN}
    samplings = {shape.sampling for shape in replayed}
    assert len(samplings) > len(WAYS), samplings
    assert any(each is not None and each.typical == FEWEST_ROWS for each in samplings)
    return own, behind


@pytest.mark.parametrize(("way", "every"), CASES)
def test_a_graph_s_own_sampling_gives_the_same_bits(
    way: str, every: int, both: tuple[Answers, Answers]
) -> None:
    own, behind = (answers[way, every] for answers in both)

    for mine, expected in zip(own, behind, strict=True):
        assert mine.token_ids == expected.token_ids
        assert list(mine.logprobs) == list(expected.logprobs)
    if every > 1:
        assert not own[1].logprobs
    assert (own[0].logprobs != ()) == ("logprobs" in WAYS[way])
    if "mask" in WAYS[way]:
        for number, answer in enumerate(own):
            obeys = all(token % 3 != n % 3 for n, token in enumerate(answer.token_ids))
            assert obeys == (number % every == 0)
