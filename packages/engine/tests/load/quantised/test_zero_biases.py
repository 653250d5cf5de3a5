"""Biases that AutoGPTQ writes for modules without one: zeros load, anything else is refused."""

from pathlib import Path

import numpy as np
import pytest
from published import METHODS, matrices, write_model
from spaninfer_engine.config import EngineConfig
from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.startup.model import resolve_model
from stepping import Model

NAME = "model.layers.1.mlp.down_proj.bias"


def biases() -> dict[str, np.ndarray]:
    return {f"{name}.bias": np.zeros(rows, np.float16) for name, (rows, _) in matrices().items()}


def resolve(folder: Path) -> None:
    with open_checkpoint(folder) as checkpoint:
        resolve_model(EngineConfig(model=folder), checkpoint)


def logits(folder: Path) -> np.ndarray:
    stepper = Model(folder).on("reference", span_len=4)
    stepper.prefill(1, [3, 14, 15, 9], chunk=4)
    return stepper.logits(1)


@pytest.mark.parametrize("name", ["GPTQ", "AWQ"])
def test_biases_of_zeros_change_nothing(name, tmp_path):
    plain, biased = (
        write_model(tmp_path / where, lambda _: METHODS[name], extra=extra)
        for where, extra in (("plain", None), ("biased", biases()))
    )

    resolve(biased)

    np.testing.assert_array_equal(logits(biased), logits(plain))


@pytest.mark.parametrize("number", [6e-8, -1.0, np.nan])
def test_a_bias_that_would_add_something_is_refused_by_name(number, tmp_path):
    extra = biases()
    extra[NAME][5] = number
    folder = write_model(tmp_path / "model", lambda _: METHODS["GPTQ"], extra=extra)

    with pytest.raises(CheckpointError, match=rf"1 problem:\s+{NAME} \[256\] is not part of"):
        resolve(folder)


def test_zeros_beside_a_weight_that_is_not_quantised_are_refused(tmp_path):
    extra = {NAME: biases()[NAME]}
    folder = write_model(tmp_path / "model", lambda _: None, extra=extra, settings={})

    with pytest.raises(CheckpointError, match=NAME):
        resolve(folder)
