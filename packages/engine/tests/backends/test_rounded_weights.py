"""Weights rounded while loading, against the definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from random_llama import write_model
from safetensors.numpy import load_file, save_file
from spaninfer_engine import Engine, SamplingParams
from spaninfer_engine.backends.reference.ops import ReferenceOps
from spaninfer_engine.backends.rounded_weights import ROUNDED, TURNED, rounded_format
from spaninfer_engine.load.packed.packing import GRID_NAMES, TABLE_NAMES, packing_of
from spaninfer_engine.ops.operation import Operation, Use
from spaninfer_engine.program.bind import bind
from spaninfer_engine.program.program import Program
from spaninfer_engine.spec.weight_nodes import Weight
from spaninfer_op_reference import (
    GRIDS,
    TABLES,
    dequantize_weight,
    grid_format,
    quantize_to_grid,
    quantize_to_table,
    table_format,
)

SAMPLING = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=2)
PROMPTS = [[5, 900, 31, 77], [1, 2]]


def rounded(array: NDArray[Any], name: str, group: int | None = 32) -> NDArray[np.float32]:
    """Return weight[O C] at its levels."""
    if name in TABLES:
        return dequantize_weight(quantize_to_table(array, table_format(name, group)))
    return dequantize_weight(quantize_to_grid(array, grid_format(name, group)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of random weights."""
    folder = tmp_path_factory.mktemp("models") / "llama"
    write_model(folder, 1, np.float32)
    return folder


def answers(folder: Path, **options: Any) -> list[Any]:
    """Return tokens and log-probabilities of answers to the prompts."""
    with Engine(folder, memory=1 << 22, max_running=4, **options) as engine:
        made = engine.generate(PROMPTS, SAMPLING)
    return [(each.token_ids, each.logprobs) for each in made]


@pytest.fixture(scope="module", params=["int3.5", "iq4_nl"])
def kind(request: pytest.FixtureRequest) -> Any:
    """What weights are rounded to: an even grid, or a table."""
    return request.param


@pytest.fixture(scope="module")
def written(model: Path, kind: str) -> Path:
    """The folder with weights of products at their levels, its head a tensor of its own.

    The table of the tied head stays as it was where tokens are looked up.
    """
    tensors = load_file(model / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    folder = model.parent / f"written {kind}"
    folder.mkdir()
    for file in ("config.json", "tokenizer.json"):
        text = (model / file).read_text().replace('embeddings": true', 'embeddings": false')
        (folder / file).write_text(text)
    products = {name for name in tensors if "proj" in name or name == "lm_head.weight"}
    numbers = {
        name: rounded(array, kind) if name in products else array for name, array in tensors.items()
    }
    save_file(numbers, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_answers_are_those_of_a_checkpoint_that_holds_the_rounded_numbers(
    model: Path, written: Path, kind: Any, backend: Any
) -> None:
    if backend == "torch":
        pytest.importorskip("torch")

    found = answers(model, backend=backend, device="cpu", quantize=kind)

    assert found == answers(written, backend=backend, device="cpu")
    assert found != answers(model, backend=backend, device="cpu")


def test_all_formats_of_levels_have_a_definition_and_others_have_none() -> None:
    assert tuple(GRIDS) == GRID_NAMES
    for name in GRID_NAMES:
        assert rounded_format(packing_of(name, 64)) == grid_format(name, 64)
    assert tuple(TABLES) == TABLE_NAMES
    for name in TABLE_NAMES:
        assert rounded_format(packing_of(name, 64)) == table_format(name, 64)
    assert rounded_format(packing_of("w8a16")) is None
    assert rounded_format(packing_of(None)) is None


class _Arrays:
    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self._arrays = arrays

    def read(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def quantized(self, name: str) -> None:
        del name


class _Noting(ReferenceOps):
    """Keeps what it packs, by layout."""

    def __init__(self) -> None:
        super().__init__("float32", grid_format("int3.5", 32))
        self.packed: dict[str, NDArray[Any]] = {}

    def pack(self, arrays: Any, layout: str) -> Any:
        self.packed[layout] = result = super().pack(arrays, layout)
        return result


def _bind(operation: Operation, ops: _Noting, arrays: dict[str, NDArray[Any]]) -> None:
    """Bind an operation on rows x, and on routes i and s."""
    table = Use("table", (Weight("t", (2, 2)),))
    embed = Operation("embed", (), ("x",), (table,), (("scale", 1.0),))
    route = Operation("route", ("x",), ("i", "s"))
    reader = _Arrays({**arrays, "t": np.zeros((2, 2), np.float32)})
    bind(Program((embed, route, operation), "y", (), ()), ops, reader)


@pytest.mark.parametrize("inputs_first", [False, True])
def test_groups_of_experts_are_inputs_of_one_output_however_they_lie(inputs_first: bool) -> None:
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((2, 48, 48), np.float32) for name in ("gate_up", "down")}
    uses = tuple(Use(name, (Weight(name, (2, 48, 48)),)) for name in arrays)
    layout = ("layout", "io" if inputs_first else "oi")
    experts = Operation("experts", ("x", "i", "s"), ("y",), uses, (("act", "silu"), layout))
    ops = _Noting()

    _bind(experts, ops, arrays)

    packed = ops.packed[TURNED if inputs_first else ROUNDED]
    for number, expert in enumerate(arrays["down"]):
        of_outputs = expert.T if inputs_first else expert
        expected = rounded(of_outputs, "int3.5")
        np.testing.assert_array_equal(packed[number], expected.T if inputs_first else expected)


def test_the_first_matrix_of_heads_has_its_inputs_first() -> None:
    array = np.random.default_rng(1).standard_normal((3, 40, 8), np.float32)
    uses = (Use("weight", (Weight("w", array.shape),)),)
    ops = _Noting()

    _bind(Operation("head_linear", ("x",), ("y",), uses), ops, {"w": array})

    for number, head in enumerate(array):
        np.testing.assert_array_equal(ops.packed[TURNED][number], rounded(head.T, "int3.5").T)
