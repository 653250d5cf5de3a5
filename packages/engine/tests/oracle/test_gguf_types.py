"""Whole models in every GGUF type beside the same models in float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from gguf_model import write_gguf
from noise import rms
from numpy.typing import NDArray
from oracle import prompt
from published import others_slow
from spaninfer_engine.load.gguf.blocks import BLOCK_TYPES
from spaninfer_kernels_cpu import active_level
from stepping import SPAN_LEN, Model

TOKENS = [token % 90 for token in prompt(12)]
OTHERS = [(3 * token + 2) % 90 for token in prompt(12)]
MIXED = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q4_K", "output": "Q6_K", "": "Q4_K"}
FEW = 6  # rows of a step, at most eight: CPUs with tiles multiply more by rounded numbers
CLOSE = 1e-5  # of the logits' deviation, in float32
TIP = 0.05  # of an activation's code, and what follows from it
TIPPED = {"IQ4_NL"}  # in the first token already
MOST = {"bfloat16": 1.5, "float16": 2.0}
"""Of what rounding costs: scales of two levels are rounded to float16, as activations may be."""
HALVES = {"Q2_K", "Q3_K", "Q6_K"}  # scales belong to 16 weights
WHOLE = {"Q4_K", "Q5_K", *HALVES}  # scales are whole numbers, which AVX2 multiplies by as such

FAST = ("Q4_0", "Q4_K", "Q6_K", "Q8_0", "Q4_K_M")
COMPILED = [
    name if name in (*FAST, "IQ4_NL") else pytest.param(name, marks=pytest.mark.sweep)
    for name in BLOCK_TYPES
]
"""A type of each way in which codes are multiplied: every kernel takes three seconds to compile."""


def _logits(
    file: Path,
    backend: str,
    tokens: Sequence[int] = TOKENS,
    chunk: int = 12,
    span_len: int = SPAN_LEN,
) -> NDArray[np.float32]:
    stepper = Model(file).on(backend, span_len=span_len)
    stepper.prefill(1, tokens, chunk=chunk)
    logits: NDArray[np.float32] = stepper.logits(1)
    return logits


@pytest.mark.parametrize("name", others_slow([*BLOCK_TYPES, "Q4_K_M"], FAST))
def test_a_model_computes_what_it_computes_in_float32(name: str, tmp_path: Path) -> None:
    types = MIXED if name == "Q4_K_M" else {"": name}
    quantised = write_gguf(tmp_path / "quantised.gguf", types)
    exact = write_gguf(tmp_path / "exact.gguf", types, expanded=True)

    np.testing.assert_array_equal(_logits(quantised, "reference"), _logits(exact, "reference"))


@pytest.mark.parametrize("name", COMPILED)
def test_the_cpu_multiplies_by_codes(name: str, tmp_path: Path) -> None:
    quantised = write_gguf(tmp_path / "quantised.gguf", {"": name})
    exact = write_gguf(tmp_path / "exact.gguf", {"": name}, expanded=True)

    differences = []
    for tokens in (TOKENS, OTHERS):
        expected = _logits(exact, f"reference activations {_seen_together(name)}", tokens)
        difference = _logits(quantised, "cpu", tokens, chunk=FEW) - expected
        assert rms(difference) < TIP * expected.std()
        differences += [rms(row) / expected.std() for row in difference]
    many = _logits(quantised, "cpu")

    if name not in TIPPED:  # sums in another order tip an activation's code now and then
        assert min(differences) < CLOSE
    assert rms(many - _logits(exact, "reference")) < TIP * expected.std()


def _seen_together(name: str) -> int:
    """The channels of an activation that share a scale."""
    if name in WHOLE and active_level().name == "avx2":
        return 256
    return 16 if name in HALVES else 32


@pytest.mark.parametrize("name", ["Q4_0"])
def test_torch_computes_with_the_numbers_that_codes_stand_for(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    quantised = write_gguf(tmp_path / "quantised.gguf", {"": name})
    exact = write_gguf(tmp_path / "exact.gguf", {"": name}, expanded=True)

    np.testing.assert_array_equal(_logits(quantised, "torch"), _logits(exact, "torch"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", MOST)
@pytest.mark.parametrize("name", [*BLOCK_TYPES, "Q4_K_M"])
def test_backend_cuda_is_as_near_with_codes_as_with_their_numbers(
    name: str, dtype: str, tmp_path: Path
) -> None:
    types = MIXED if name == "Q4_K_M" else {"": name}
    quantised = write_gguf(tmp_path / "quantised.gguf", types)
    expanded = write_gguf(tmp_path / "exact.gguf", types, expanded=True)
    tokens = [token % 90 for token in prompt(100)]
    exact = _logits(expanded, "reference", tokens, chunk=100)

    for chunk in (1, 9, 100):
        error, rounding = (
            rms(_logits(file, f"cuda {dtype}", tokens, chunk, span_len=16) - exact)
            for file in (quantised, expanded)
        )
        assert error < MOST[dtype] * rounding
