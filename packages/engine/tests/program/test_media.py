"""Embeddings supplied from outside, against transformers given the same vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import EXACT, Backend
from families import FAMILIES
from oracle import Oracle, deviation, prompt
from spaninfer_engine.backends.host.device import build_step
from spaninfer_engine.ops.rotary import Rotary
from spaninfer_engine.ops.step import Rows, Step
from spaninfer_engine.program.bind import bind
from spaninfer_engine.program.lower import lower
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.spec.nodes import ropes
from spaninfer_engine.step.batch import build_batch
from spaninfer_engine.step.plan import NewSequence, Slice, TableUpdate
from spaninfer_engine.step.sequences import Sequences
from stepping import Model

TOKENS = prompt(9)
ROWS = [2, 5]
VECTORS = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)


def _logits(model: Model, backend: Backend, **media: Any) -> np.ndarray:
    """Return the logits of every position of TOKENS in a step with media rows."""
    ops, groups = backend.make(), model.decoder.groups
    sequences = Sequences(len(groups), max_len=16, span_len=4, num_rows=1)
    sequences.enter(NewSequence(1, tuple(TOKENS), SamplingParams(), 0))
    sequences.update_table(TableUpdate(1, 0, 0, (3, 0, 2)))
    caches = tuple(ops.cache(group, 4, 4) for group in groups)
    rotaries = tuple(map(Rotary, ropes(model.decoder)))
    batch = build_batch([Slice(1, 0, len(TOKENS), 0, True)], sequences, on_host=[1])
    step: Step[Any] = build_step(batch, sequences, ops, caches, rotaries)
    rows = Rows(ops.from_host(np.array(ROWS)), backend.put(ops, VECTORS))
    bound = bind(lower(model.decoder), ops, model.checkpoint.reader)
    context = replace(step, **{name: make(rows) for name, make in media.items()})
    ops.prepare(context)
    result: np.ndarray = ops.to_host(bound.run(context))
    return result


@pytest.mark.parametrize("backend", EXACT, ids=str)
def test_media_embeddings_take_the_place_of_token_embeddings(
    backend: Backend, tmp_path: Path
) -> None:
    oracle = Oracle(FAMILIES["qwen3"], seed=3)
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        embeddings = oracle.model.get_input_embeddings()(torch.tensor([TOKENS]))
        embeddings[0, ROWS] = torch.from_numpy(VECTORS)
        expected = oracle.model(inputs_embeds=embeddings).logits[0].numpy()

    logits = _logits(Model(oracle.save(tmp_path)), backend, replaced=lambda rows: rows)

    assert deviation(logits, expected) < 1e-4


@pytest.mark.parametrize("backend", EXACT, ids=str)
def test_vectors_are_added_to_the_output_of_a_layer(backend: Backend, tmp_path: Path) -> None:
    oracle = Oracle(FAMILIES["qwen3"], seed=3)
    torch = pytest.importorskip("torch")

    def add(_layer: Any, _inputs: Any, output: Any) -> Any:
        output[0, ROWS] += torch.from_numpy(VECTORS)
        return output

    hook = oracle.model.model.layers[1].register_forward_hook(add)
    with torch.no_grad():
        expected = oracle.model(torch.tensor([TOKENS])).logits[0].numpy()
    hook.remove()

    logits = _logits(Model(oracle.save(tmp_path)), backend, added=lambda rows: {1: rows})

    assert deviation(logits, expected) < 1e-4
