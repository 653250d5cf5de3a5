"""Folders of 8-bit codes in the format compressed-tensors: their content and their answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from families import FAMILIES
from gguf_model import write_gguf
from numpy.typing import NDArray
from oracle import Oracle
from published import METHODS, matrices, write_experts
from published import write_model as write_published
from random_llama import write_model
from safetensors import deserialize
from safetensors.numpy import save_file
from spaninfer_engine import Engine, SamplingParams
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.load.packed.tensor_error import TensorError
from spaninfer_engine.tools.conversion import convert
from spaninfer_op_reference import quantize_fp8

PROMPTS = [[5, 31, 77, 40], [1, 2]]
SAMPLING = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2)

TYPES = {
    "F32": np.float32,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "I8": np.int8,
}

Array = NDArray[Any]


def load_file(path: Path) -> dict[str, Array]:
    """The arrays of a file; safetensors.numpy makes none of e4m3."""
    return {
        name: np.frombuffer(each["data"], TYPES[each["dtype"]]).reshape(each["shape"]).copy()
        for name, each in deserialize(path.read_bytes())
    }


def rounded(weight: Array, scheme: str) -> tuple[Array, Array]:
    """Codes [N K] and scales [N 1] in float32, as backend cuda rounds while loading."""
    numbers = weight.astype(np.float32)
    if scheme == "fp8":
        held, scales = quantize_fp8(numbers)
        return held.astype(ml_dtypes.float8_e4m3fn), scales  # which are numbers of e4m3
    scales = np.abs(numbers).max(1)[:, None] / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(numbers / scales).astype(np.int8), scales


def as_numbers(made: Mapping[str, Array], name: str) -> Array:
    """The numbers that a tensor's codes stand for, in float64, which are float32 once rounded."""
    return made[name].astype(np.float64) * made[f"{name}_scale"]


def answers(folder: Path, **options: Any) -> list[Any]:
    """Tokens and log-probabilities of answers to the prompts."""
    with Engine(folder, memory=1 << 22, **options) as engine:
        made = engine.generate(PROMPTS, SAMPLING)
    return [(each.token_ids, each.logprobs) for each in made]


def plain(folder: Path, out: Path) -> Path:
    """The folder with every weight as the numbers that its codes stand for."""
    out.mkdir()
    read = load_file(folder / "model.safetensors")
    numbers = {
        name: as_numbers(read, name).astype(np.float32) if f"{name}_scale" in read else each
        for name, each in read.items()
        if not name.endswith("_scale")
    }
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (out / "config.json").write_text(json.dumps(config))
    save_file(numbers, out / "model.safetensors")
    return out


@pytest.mark.parametrize("scheme", ["fp8", "w8a8"])
def test_linear_weights_become_codes_and_all_else_stays(tmp_path: Path, scheme: Any):
    model = tmp_path / "model"
    write_model(model, 1, ml_dtypes.bfloat16)
    read = load_file(model / "model.safetensors")
    read["model.layers.0.mlp.up_proj.weight"][3] = 0  # a row without a scale
    save_file(read, model / "model.safetensors")

    out = convert(model, tmp_path / "out", quantize=scheme)

    made = load_file(out / "model.safetensors")
    inside = {name for name in read if "_proj." in name}
    assert set(made) == set(read) | {f"{name}_scale" for name in inside}
    for name, tensor in read.items():
        if name in inside:
            codes, scales = rounded(tensor, scheme)
            np.testing.assert_array_equal(made[f"{name}_scale"], scales)
            assert made[f"{name}_scale"].dtype == np.float32
        else:
            codes = tensor
        assert made[name].dtype == codes.dtype
        assert made[name].tobytes() == codes.tobytes(), name
    assert sorted(file.name for file in out.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


@pytest.mark.parametrize("scheme", ["fp8", "w8a8"])
def test_the_config_says_what_llm_compressor_writes(tmp_path: Path, scheme: Any):
    """As in the config.json of RedHatAI's Qwen2.5-7B-Instruct-FP8-dynamic and -quantized.w8a8."""
    model = tmp_path / "model"
    write_model(model, 1, ml_dtypes.bfloat16)
    before = json.loads((model / "config.json").read_text())

    after = json.loads(
        (convert(model, tmp_path / "out", quantize=scheme) / "config.json").read_text()
    )

    said = after.pop("quantization_config")
    assert after == before
    kind = {"num_bits": 8, "type": {"fp8": "float", "w8a8": "int"}[scheme], "symmetric": True}
    assert said == {
        "quant_method": "compressed-tensors",
        "format": {"fp8": "float-quantized", "w8a8": "int-quantized"}[scheme],
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**kind, "strategy": "channel", "dynamic": False},
                "input_activations": {**kind, "strategy": "token", "dynamic": True},
            }
        },
        "ignore": ["model.embed_tokens"],
    }


@pytest.mark.parametrize("scheme", ["fp8", "w8a8"])
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_a_folder_answers_as_the_numbers_of_its_codes_do(tmp_path: Path, scheme: Any, backend: Any):
    if backend == "torch":
        pytest.importorskip("torch")
    model = write_published(tmp_path / "model", lambda _: None, dtype="float32")
    out = convert(model, tmp_path / "out", quantize=scheme)

    assert answers(out, backend=backend) == answers(plain(out, tmp_path / "plain"), backend=backend)
    assert answers(out, backend=backend) != answers(model, backend=backend)


def test_backend_cpu_multiplies_the_codes_of_w8a8(tmp_path: Path):
    model = write_published(tmp_path / "model", lambda _: None, dtype="float32")
    out = convert(model, tmp_path / "out", quantize="w8a8")

    with Engine(out, memory=1 << 22, backend="cpu") as engine:
        said = {each.what: each.why for each in engine.resolved.decisions}
    assert "multiplied as codes by int8 activations" in said["weight format"]
    exact = answers(plain(out, tmp_path / "plain"), backend="reference")
    for made, expected in zip(answers(out, backend="cpu"), exact, strict=True):
        assert made[0] == expected[0]


@pytest.mark.parametrize("scheme", ["fp8", "w8a8"])
def test_experts_become_codes_and_routers_do_not(tmp_path: Path, scheme: Any):
    model = write_experts(tmp_path / "model", METHODS["W8A8"], expanded=True, dtype="float32")
    out = convert(model, tmp_path / "out", quantize=scheme)

    made = load_file(out / "model.safetensors")
    codes = {name.removesuffix("_scale") for name in made if name.endswith("_scale")}
    expected = {f"{name}.weight" for name in matrices() if ".self_attn." in name} | {
        f"model.layers.{layer}.block_sparse_moe.experts.{expert}.w{part}.weight"
        for layer in (0, 1)
        for expert in range(4)
        for part in (1, 2, 3)
    }
    assert codes == expected
    said = json.loads((out / "config.json").read_text())["quantization_config"]
    assert said["ignore"] == [
        "lm_head",
        "model.embed_tokens",
        "model.layers.0.block_sparse_moe.gate",
        "model.layers.1.block_sparse_moe.gate",
    ]
    expected_answers = answers(plain(out, tmp_path / "plain"), backend="reference")
    assert answers(out, backend="reference") == expected_answers


def test_weights_that_were_published_quantised_are_rounded_from_their_numbers(tmp_path: Path):
    codes = write_published(tmp_path / "codes", lambda _: METHODS["GPTQ"], dtype="float32")
    numbers = write_published(
        tmp_path / "numbers", lambda _: METHODS["GPTQ"], dtype="float32", expanded=True
    )

    made = [
        convert(each, tmp_path / f"{each.name}-fp8", quantize="fp8") for each in (codes, numbers)
    ]

    first, second = (load_file(each / "model.safetensors") for each in made)
    assert {name: each.tobytes() for name, each in first.items()} == {
        name: each.tobytes() for name, each in second.items()
    }
    assert (made[0] / "config.json").read_text() == (made[1] / "config.json").read_text()


def test_a_gguf_file_becomes_a_folder_of_the_same_text(tmp_path: Path):
    file = write_gguf(tmp_path / "model.gguf", {"": "Q8_0"})
    with open_checkpoint(file) as checkpoint:
        pieces, config = tuple(checkpoint.tokenizer.pieces), dict(checkpoint.config)

    out = convert(file, tmp_path / "out", quantize="w8a8")

    file.unlink()
    with open_checkpoint(out) as checkpoint:
        assert tuple(checkpoint.tokenizer.pieces) == pieces
        assert {**checkpoint.config, "quantization_config": None} == {
            **config,
            "quantization_config": None,
        }
    assert answers(out, backend="reference") == answers(
        plain(out, tmp_path / "plain"), backend="reference"
    )


@pytest.mark.parametrize("scheme", ["fp8", "w8a8"])
def test_the_report_and_the_progress_are_of_every_tensor(tmp_path: Path, scheme: Any):
    model = tmp_path / "model"
    write_model(model, 1, ml_dtypes.bfloat16)
    errors: list[TensorError] = []
    units: list[tuple[str, int, int]] = []

    out = convert(
        model,
        tmp_path / "out",
        quantize=scheme,
        report=errors.append,
        progress=lambda *each: units.append(each),
    )

    read, made = load_file(model / "model.safetensors"), load_file(out / "model.safetensors")
    assert {each.name for each in errors} == {name for name in read if "_proj." in name}
    for each in errors:
        numbers = read[each.name].astype(np.float64)
        error = as_numbers(made, each.name) - numbers
        size = np.sqrt((numbers**2).mean())
        assert each.shape == numbers.shape
        assert each.relative_rms == pytest.approx(np.sqrt((error**2).mean()) / size, 1e-6)
        assert each.largest == pytest.approx(np.abs(error).max() / size, 1e-6)
        assert each.bits == 8 + 32 / numbers.shape[1]
    assert units == [("weights", done, len(read)) for done in range(len(read) + 1)]


def test_groups_are_refused(tmp_path: Path):
    write_model(tmp_path / "model", 1, ml_dtypes.bfloat16)

    with pytest.raises(ConfigError, match="quantize_group only applies to"):
        convert(tmp_path / "model", tmp_path / "out", quantize="fp8", quantize_group=64)

    assert not (tmp_path / "out").exists()


def test_experts_in_one_tensor_are_refused(tmp_path: Path):
    model = Oracle(FAMILIES["granitemoe"], 1).save(tmp_path / "model")

    said = r"input_linear.weight \[6, 192, 64\] is no weight.* give --quantize at every start"
    with pytest.raises(ConfigError, match=said):
        convert(model, tmp_path / "out", quantize="w8a8")


def test_a_tower_keeps_its_numbers(tmp_path: Path):
    """Of the bundled model, which sees."""
    out = convert("demo", tmp_path / "out", quantize="fp8")

    made = load_file(out / "model.safetensors")
    codes = {name for name, each in made.items() if each.dtype == ml_dtypes.float8_e4m3fn}
    assert codes
    assert not any("vis" in name for name in codes)
    with Engine(out, memory=1 << 22, backend="reference") as engine:
        (answer,) = engine.generate(["Once upon a time"], SAMPLING)
    assert len(answer.token_ids) == 6
