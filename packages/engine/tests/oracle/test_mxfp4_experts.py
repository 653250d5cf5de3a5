"""gpt-oss as published: MXFP4 experts, against transformers with the dequantised weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import FAMILIES
from noise import rms
from numpy.typing import NDArray
from oracle import TOLERANCE, Oracle, deviation, prompt
from safetensors.numpy import load_file, save_file
from spaninfer_op_reference import E2M1
from stepping import Model
from wide import WIDE

SETTINGS = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_a_gpt_oss_in_mxfp4_gives_logits_of_the_numbers_that_it_stands_for(
    backend: str, tmp_path: Path
) -> None:
    oracle = Oracle(FAMILIES["gpt_oss"], seed=3)
    _publish(oracle, tmp_path)

    assert deviation(_logits(tmp_path, backend), oracle.logits(prompt(40))) < TOLERANCE


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", [1, 16])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_backend_cuda_multiplies_by_its_codes(dtype: str, chunk: int, tmp_path: Path) -> None:
    oracle = Oracle(WIDE["gpt_oss"], seed=3)
    published, expanded = tmp_path / "published", tmp_path / "expanded"
    for folder in (published, expanded):
        folder.mkdir()
    _publish(oracle, published)
    oracle.save(expanded)
    exact = oracle.logits(prompt(40))

    error, rounding = (
        rms(_logits(folder, f"cuda {dtype}", chunk, span_len=16) - exact)
        for folder in (published, expanded)
    )

    assert error < 1.5 * rounding


def _logits(folder: Path, backend: str, chunk: int = 16, span_len: int = 4) -> NDArray[np.float32]:
    runner = Model(folder).on(backend, span_len=span_len)
    runner.prefill(1, prompt(40), chunk=chunk)
    logits: NDArray[np.float32] = runner.logits(1)
    return logits


def _publish(oracle: Oracle, folder: Path) -> None:
    """Save the model as gpt-oss is published, with experts that MXFP4 can hold."""
    stored = _quantise_experts(oracle)
    oracle.save(folder)
    file = folder / "model.safetensors"
    others = {
        name: each for name, each in load_file(file).items() if f"{name}_blocks" not in stored
    }
    save_file({**others, **stored}, file)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": SETTINGS}))


def _quantise_experts(oracle: Oracle) -> dict[str, NDArray[Any]]:
    """Give the model experts that MXFP4 can hold; return their tensors as files have them."""
    torch = pytest.importorskip("torch")
    rng, stored = np.random.default_rng(5), {}
    for name, parameter in oracle.model.named_parameters():
        if not name.endswith(("gate_up_proj", "down_proj")):
            continue
        experts, columns, rows = parameter.shape  # transformers has [E, in, out]
        codes = rng.integers(0, 16, (experts, rows, columns))
        exponents = rng.integers(122, 125, (experts, rows, columns // 32)).astype(np.uint8)
        numbers = np.array(E2M1)[codes] * np.repeat(2.0 ** (exponents.astype(float) - 127), 32, -1)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(numbers.swapaxes(1, 2)))
        pairs = (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)
        stored[f"{name}_blocks"] = pairs.reshape(experts, rows, columns // 32, 16)
        stored[f"{name}_scales"] = exponents
    return stored
