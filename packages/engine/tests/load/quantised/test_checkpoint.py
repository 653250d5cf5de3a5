"""Published layouts of quantised weights against the values they stand for."""

import json

import ml_dtypes
import numpy as np
import pytest
from published import (
    METHODS,
    NORMS,
    Method,
    awq,
    fp8,
    gptq,
    matrices,
    packed,
    stream,
    write_model,
)
from safetensors.numpy import save_file
from spaninfer_engine.errors import CheckpointError, ConfigError
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.load.quantised.bits import unpack_stream
from spaninfer_op_reference import dequantize_weight

EXACT = 2.0**-24  # one rounding to float32
NAME = "model.layers.1.mlp.down_proj"


def _expected(method: Method) -> np.ndarray:
    seed = list(matrices()).index(NAME)
    return method.write(*matrices()[NAME], np.random.default_rng(seed)).numbers


@pytest.mark.parametrize("name", METHODS)
def test_a_weight_is_read_as_the_numbers_that_it_stands_for(name, tmp_path):
    expected = _expected(METHODS[name]).astype(np.float32)
    folder = write_model(tmp_path / "model", lambda _: METHODS[name])

    with open_checkpoint(folder) as checkpoint:
        reader = checkpoint.reader
        stored, read = reader.quantized(f"{NAME}.weight"), reader.read(f"{NAME}.weight")
        modules = {*matrices(), *NORMS, "model.embed_tokens"}
        assert reader.names == {f"{module}.weight" for module in modules}

    assert stored is not None
    np.testing.assert_array_equal(dequantize_weight(stored.load()), expected)
    np.testing.assert_array_equal(read, expected.astype(ml_dtypes.bfloat16))


def test_a_format_says_what_a_weight_takes(tmp_path):
    folder = write_model(tmp_path / "model", lambda _: METHODS["GPTQ symmetric"])

    with open_checkpoint(folder) as checkpoint:
        entry = checkpoint.reader.quantized(f"{NAME}.weight")

    rows, columns = matrices()[NAME]
    assert str(entry.format) == "GPTQ int4 g32"
    assert (entry.format.zero, entry.format.stored_bits) == ("none", 4 + 20 / 32)
    assert entry.num_bytes == rows * columns * 4.625 / 8 + 4 * columns  # and g_idx


def test_schemes_may_differ_by_module_and_what_is_stored_plainly_stays_so(tmp_path):
    """The config's lists are not believed: tensors say what a module is."""

    def method_of(name: str) -> Method | None:
        if "self_attn" in name:
            return METHODS["W4A16"]
        return METHODS["FP8 per channel"] if "mlp" in name else None

    groups = {
        "a": {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 4}},
        "b": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 8, "type": "float"}},
    }
    settings = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["x"]}
    folder = write_model(tmp_path / "model", method_of, settings=settings)

    with open_checkpoint(folder) as checkpoint:
        stored = {name: checkpoint.reader.quantized(f"{name}.weight") for name in matrices()}

    found = {name: str(entry.format) for name, entry in stored.items() if entry is not None}
    assert found.keys() == matrices().keys() - {"lm_head"}
    assert found["model.layers.0.self_attn.q_proj"] == "int4 g128"
    assert found["model.layers.0.mlp.up_proj"] == "FP8 per row"


def test_blocks_at_the_edge_are_partial(tmp_path):
    method = fp8((128, 128), name="weight_scale_inv", quant_method="fp8")
    rng = np.random.default_rng(0)
    published = method.write(200, 300, rng)
    entries = _read_alone(tmp_path, published.tensors, method.settings)

    np.testing.assert_array_equal(entries.read("m.weight"), published.numbers.astype(np.float32))


def test_experts_of_gpt_oss_are_one_tensor(tmp_path):
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (3, 4, 2, 16)).astype(np.uint8)
    scales = rng.integers(120, 130, (3, 4, 2)).astype(np.uint8)
    tensors = {"e.gate_up_proj_blocks": blocks, "e.gate_up_proj_scales": scales}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "mxfp4"}}')

    reader = open_checkpoint(tmp_path).reader

    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = np.concatenate([e2m1, -e2m1])
    numbers = np.stack([table[blocks & 15], table[blocks >> 4]], -1).reshape(3, 4, 2, 32)
    expected = (numbers * 2.0 ** (scales[..., None] - 127.0)).reshape(3, 4, 64)
    np.testing.assert_array_equal(reader.read("e.gate_up_proj"), expected)


def test_negative_groups_count_from_the_end_and_missing_zeros_mean_the_middle(tmp_path):
    method = gptq(4, 64, reordered=True)
    published = method.write(64, 128, np.random.default_rng(0))
    tensors = dict(published.tensors)
    tensors["g_idx"] = np.where(tensors["g_idx"] == 1, -1, tensors["g_idx"])

    read = _read_alone(tmp_path / "gptq", tensors, method.settings).read("m.weight")

    np.testing.assert_array_equal(read, published.numbers.astype(np.float32))
    published = awq(64).write(64, 128, np.random.default_rng(0))
    without = {name: array for name, array in published.tensors.items() if name != "qzeros"}
    with_middle = {**published.tensors, "qzeros": np.full((2, 8), 0x88888888, np.uint32)}
    with_middle["qzeros"] = with_middle["qzeros"].view(np.int32)
    np.testing.assert_array_equal(
        _read_alone(tmp_path / "none", without, awq(64).settings).read("m.weight"),
        _read_alone(tmp_path / "eight", with_middle, awq(64).settings).read("m.weight"),
    )


def test_model_opt_says_it_in_a_file_of_its_own(tmp_path):
    scale = {"model.layers.0.self_attn.k_proj.k_scale": np.ones(1, np.float32)}
    folder = write_model(tmp_path / "model", lambda _: METHODS["NVFP4"], settings={}, extra=scale)
    said = {"producer": {}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(said))

    with open_checkpoint(folder) as checkpoint:
        assert not [name for name in checkpoint.reader.names if "k_scale" in name]
        assert checkpoint.config["quantization_config"]["quant_method"] == "modelopt"


@pytest.mark.parametrize("place", ["self_attn.k_proj.k_scale", "self_attn.attn.v_scale"])
@pytest.mark.parametrize("scale", [0.02, np.array([0.5, 0.25], np.float32)])
def test_scales_of_a_kv_cache_are_checked_and_not_needed(scale, place, tmp_path):
    """One per layer or one per head: our KV caches have one per token and head."""
    name = f"model.layers.0.{place}"
    parts = {name: np.asarray(scale, np.float32), f"{name[:-5]}zero_point": np.zeros(1, np.int8)}
    settings = METHODS["FP8 per channel"].settings
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    settings = {**settings, "kv_cache_scheme": scheme}
    folder = write_model(
        tmp_path / "model", lambda _: METHODS["FP8 per channel"], settings=settings, extra=parts
    )

    with open_checkpoint(folder) as checkpoint:
        assert not parts.keys() & checkpoint.reader.names


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_a_scale_of_a_kv_cache_that_is_no_number_above_0_is_refused_by_name(scale, tmp_path):
    parts = {"model.layers.1.self_attn.v_proj.v_scale": np.array([1, scale], np.float32)}
    folder = write_model(tmp_path / "model", lambda _: METHODS["FP8 per channel"], extra=parts)

    with pytest.raises(CheckpointError, match=r"layers.1.self_attn.v_proj.v_scale' holds"):
        open_checkpoint(folder)


def test_a_scale_of_a_kv_cache_in_whole_numbers_is_refused(tmp_path):
    parts = {"model.layers.1.self_attn.k_scale": np.ones(1, np.int32)}
    folder = write_model(tmp_path / "model", lambda _: METHODS["FP8 per channel"], extra=parts)

    with pytest.raises(CheckpointError, match="scales of a KV cache are floats"):
        open_checkpoint(folder)


def _read_alone(folder, tensors, settings):
    """Return a reader of one module called m, in float32."""
    folder.mkdir(exist_ok=True)
    named = {f"m.{suffix}": np.ascontiguousarray(array) for suffix, array in tensors.items()}
    save_file(named, folder / "model.safetensors")
    config = {"torch_dtype": "float32", "quantization_config": dict(settings)}
    (folder / "config.json").write_text(json.dumps(config))
    return open_checkpoint(folder).reader


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["hqq", "aqlm", "exl3", 7])
@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_an_unknown_method_is_refused_by_name_even_without_weights(tmp_path, method, key):
    folder = write_model(tmp_path / "model", lambda _: None)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: {"quant_method": method}}))

    for with_weights in (True, False):
        with pytest.raises(
            ConfigError, match=rf"{key} with quant_method {method!r}; supported are gptq"
        ):
            open_checkpoint(folder, with_weights=with_weights)


@pytest.mark.parametrize(
    ("method", "change", "told"),
    [
        (gptq(4, 128), {"checkpoint_format": "marlin"}, "'m' is in GPTQ's checkpoint_format 'mar"),
        (gptq(4, 128), {"is_marlin_format": True}, "checkpoint_format 'marlin'; gptq and gptq_v2"),
        (awq(128), {"version": "gemv"}, "'m' is in AWQ's version 'gemv' with 4 bits"),
        (awq(128), {"bits": 8}, "version 'gemm' with 8 bits"),
        (gptq(4, 128), {"quant_method": "fp8"}, "it has qweight, and no quantization_config says"),
        (packed(4, 128), {"config_groups": {}}, "no entry of config_groups has it as a target"),
        (packed(6, 128), {"config_groups": {"W4A16": ["Linear"]}}, "48 words for 256"),
    ],
)
def test_what_the_config_says_of_a_module_is_refused_by_name(tmp_path, method, change, told):
    published = method.write(64, 256, np.random.default_rng(0))

    with pytest.raises((ConfigError, CheckpointError), match=told):
        _read_alone(tmp_path, published.tensors, {**method.settings, **change})


@pytest.mark.parametrize("name", METHODS)
def test_no_module_that_lacks_a_tensor_or_part_of_one_is_taken_for_whole(name, tmp_path):
    method = METHODS[name]
    published = method.write(64, 256, np.random.default_rng(0))
    optional = {"g_idx", "input_scale", "weight_format", "weight_g_idx", "weight_zero_point"}
    optional |= {"qzeros"} if name.startswith("AWQ") else set()
    for suffix, array in published.tensors.items():
        without = {key: each for key, each in published.tensors.items() if key != suffix}
        if suffix not in optional:
            assert not _is_whole(tmp_path / f"without {suffix}", without, method)
        if array.ndim and suffix not in ("weight_format", "input_scale"):
            cut = {**without, suffix: array[:-1]}
            assert not _is_whole(tmp_path / f"{suffix} cut short", cut, method), suffix


def _is_whole(folder, tensors, method):
    """Return whether there is a weight of the right shape in numbers that packing takes.

    All others are refused: here by the name of the module, else where the spec is checked.
    """
    try:
        reader = _read_alone(folder, tensors, method.settings)
    except CheckpointError as refused:
        return "quantised module 'm'" not in str(refused)
    return (
        reader.names == {"m.weight"}
        and reader.shape("m.weight") == (64, 256)
        and reader.dtype("m.weight") == np.float32
    )


@pytest.mark.parametrize("bits", [3, 4])
def test_large_words_are_unpacked_by_several_threads_to_the_same_codes(bits):
    codes = np.random.default_rng(0).integers(0, 1 << bits, (3000, 1024)).astype(np.uint8)
    words = stream(codes, bits)

    unpacked = unpack_stream(np.ascontiguousarray(words.T).T, bits, 1024)

    np.testing.assert_array_equal(unpacked, codes)
