import contextlib
import math
import random
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from spaninfer_engine.errors import CheckpointError, ConfigError, EngineError
from spaninfer_engine.load.gguf.model import open_gguf
from spaninfer_engine.load.gguf.rope import llama3_factors
from spaninfer_engine.spec import check, find, resolve
from spaninfer_engine.vocab import PieceType, VocabularyKind
from vocabularies import spm_vocabulary

HIDDEN, FFN, HEADS, KV, HEAD = 64, 96, 4, 2, 16
Q8_0 = gguf.GGMLQuantizationType.Q8_0
BF16 = gguf.GGMLQuantizationType.BF16


class GgufFile:
    """A GGUF file of one layer that a test fills and writes."""

    def __init__(self, path: Path, architecture: str) -> None:
        self.path = path
        self.writer = gguf.GGUFWriter(path, architecture)
        self.writer.add_context_length(128)
        self.writer.add_embedding_length(HIDDEN)
        self.writer.add_feed_forward_length(FFN)
        self.writer.add_block_count(1)
        self.writer.add_head_count(HEADS)
        self.writer.add_head_count_kv(KV)
        self.writer.add_layer_norm_rms_eps(1e-6)
        self.writer.add_rope_freq_base(10000.0)
        self.arrays: dict[str, np.ndarray] = {}

    def vocabulary(self) -> None:
        vocabulary = spm_vocabulary()
        self.writer.add_tokenizer_model("llama")
        self.writer.add_token_list(list(vocabulary.pieces))
        self.writer.add_token_scores(list(vocabulary.scores))
        self.writer.add_token_types([int(kind) for kind in vocabulary.types])
        self.writer.add_bos_token_id(1)
        self.writer.add_eos_token_id(2)
        self.writer.add_chat_template("{{ messages }}")

    def add(self, name: str, shape: tuple[int, ...], kind: object = None) -> np.ndarray:
        array = np.random.default_rng(len(self.arrays)).standard_normal(shape).astype(np.float32)
        self.arrays[name] = array
        if kind is None:
            self.writer.add_tensor(name, array)
        else:
            self.writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
        return array

    def layer(self) -> None:
        kv = KV * HEAD
        shapes = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HEADS * HEAD, HIDDEN),
            "attn_k": (kv, HIDDEN),
            "attn_v": (kv, HIDDEN),
            "attn_output": (HIDDEN, HEADS * HEAD),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (FFN, HIDDEN),
            "ffn_up": (FFN, HIDDEN),
            "ffn_down": (HIDDEN, FFN),
        }
        for name, shape in shapes.items():
            self.add(f"blk.0.{name}.weight", shape)
        self.add("token_embd.weight", (300, HIDDEN))
        self.add("output_norm.weight", (HIDDEN,))

    def close(self) -> Path:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
        return self.path


@pytest.fixture
def file(tmp_path):
    file = GgufFile(tmp_path / "model.gguf", "llama")
    file.vocabulary()
    return file


def test_a_llama_comes_out_under_hugging_face_names_and_row_order(file):
    file.layer()

    opened = open_gguf(file.close())

    q = file.arrays["blk.0.attn_q.weight"].reshape(HEADS, HEAD // 2, 2, HIDDEN)
    expected = q.transpose(0, 2, 1, 3).reshape(HEADS * HEAD, HIDDEN)
    prefix = "model.layers.0."
    np.testing.assert_array_equal(opened.reader.read(prefix + "self_attn.q_proj.weight"), expected)
    np.testing.assert_array_equal(
        opened.reader.read(prefix + "mlp.down_proj.weight"), file.arrays["blk.0.ffn_down.weight"]
    )
    assert opened.config["architectures"] == ["LlamaForCausalLM"]
    assert opened.config["rms_norm_eps"] == 1e-6
    assert opened.config["vocab_size"] == 300
    assert opened.config["tie_word_embeddings"] is True
    assert opened.config["eos_token_id"] == [2]
    assert opened.text.chat_template == "{{ messages }}"
    assert opened.text.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_a_stack_of_quantised_experts_is_read_expert_by_expert(file):
    file.writer.add_uint32("llama.expert_count", 3)
    file.writer.add_uint32("llama.expert_used_count", 2)
    stack = file.add("blk.0.ffn_gate_exps.weight", (3, FFN, HIDDEN), Q8_0)

    reader = open_gguf(file.close()).reader

    for expert in range(3):
        name = f"model.layers.0.block_sparse_moe.experts.{expert}.w1.weight"
        expected = gguf.dequantize(gguf.quantize(stack[expert], Q8_0), Q8_0)
        np.testing.assert_array_equal(reader.read(name), expected)
        assert reader.quantized(name).num_bytes == FFN * HIDDEN * 34 // 32


def test_a_permutation_undoes_that_of_the_conversion(file):
    """Conversion to GGUF brings halves into pairs; reading must give the halves back."""
    halves = np.arange(HEADS * HEAD * HIDDEN, dtype=np.float32).reshape(-1, HIDDEN)
    pairs = halves.reshape(HEADS, 2, HEAD // 2, HIDDEN).swapaxes(1, 2).reshape(halves.shape)
    file.writer.add_tensor("blk.0.attn_q.weight", pairs)

    read = open_gguf(file.close()).reader.read("model.layers.0.self_attn.q_proj.weight")

    np.testing.assert_array_equal(read, halves)


def test_q8_0_is_dequantised_when_read(file):
    array = file.add("blk.0.ffn_up.weight", (FFN, HIDDEN), Q8_0)

    opened = open_gguf(file.close())

    read = opened.reader.read("model.layers.0.mlp.up_proj.weight")
    blocks = array.reshape(-1, 32)
    scales = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    assert opened.reader.dtype("model.layers.0.mlp.up_proj.weight") == np.float32
    # half a step of rounding, and that of the scale to float16
    assert (np.abs(read.reshape(-1, 32) - blocks) <= 0.57 * scales).all()
    np.testing.assert_allclose(
        np.round(read.reshape(-1, 32) / scales), read.reshape(-1, 32) / scales, atol=1e-4
    )


def test_quantised_rows_are_moved_as_they_are_stored(file):
    """Projections of queries lie in another row order; their codes are not quantised anew."""
    array = file.add("blk.0.attn_q.weight", (HEADS * HEAD, HIDDEN), gguf.GGMLQuantizationType.Q5_1)

    reader = open_gguf(file.close()).reader

    name = "model.layers.0.self_attn.q_proj.weight"
    stored = gguf.quantize(array, gguf.GGMLQuantizationType.Q5_1)
    pairs = gguf.dequantize(stored, gguf.GGMLQuantizationType.Q5_1)
    halves = pairs.reshape(HEADS, HEAD // 2, 2, HIDDEN).swapaxes(1, 2).reshape(array.shape)
    np.testing.assert_array_equal(reader.read(name), halves)
    assert str(reader.quantized(name).format) == "Q5_1"


def test_half_precision_stays_as_it_is_stored(file):
    bf16 = file.add("blk.0.ffn_up.weight", (FFN, HIDDEN), BF16)
    f16 = np.linspace(-1, 1, FFN * HIDDEN, dtype=np.float16).reshape(FFN, HIDDEN)
    file.writer.add_tensor("blk.0.ffn_gate.weight", f16)

    reader = open_gguf(file.close()).reader

    np.testing.assert_array_equal(
        reader.read("model.layers.0.mlp.up_proj.weight"), bf16.astype(ml_dtypes.bfloat16)
    )
    np.testing.assert_array_equal(reader.read("model.layers.0.mlp.gate_proj.weight"), f16)


def test_qwen_rows_and_biases_keep_their_order(tmp_path):
    file = GgufFile(tmp_path / "q.gguf", "qwen2")
    file.vocabulary()
    weight = file.add("blk.0.attn_q.weight", (HEADS * HEAD, HIDDEN))
    bias = file.add("blk.0.attn_q.bias", (HEADS * HEAD,))

    opened = open_gguf(file.close())

    assert opened.config["architectures"] == ["Qwen2ForCausalLM"]
    np.testing.assert_array_equal(
        opened.reader.read("model.layers.0.self_attn.q_proj.weight"), weight
    )
    np.testing.assert_array_equal(opened.reader.read("model.layers.0.self_attn.q_proj.bias"), bias)


def test_gemma_norms_lose_the_one_that_the_conversion_added(tmp_path):
    file = GgufFile(tmp_path / "g.gguf", "gemma")
    file.vocabulary()
    stored = file.add("blk.0.attn_norm.weight", (HIDDEN,))

    read = open_gguf(file.close()).reader.read("model.layers.0.input_layernorm.weight")

    np.testing.assert_array_equal(read, stored - 1)


def test_llama_3_scaling_is_found_again_from_its_factors(file):
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    factors = llama3_factors(scaling, 10000.0, HEAD // 2).astype(np.float32)
    file.writer.add_tensor("rope_freqs.weight", factors)

    opened = open_gguf(file.close())

    assert opened.config["rope_scaling"] == scaling
    assert opened.reader.names == frozenset()


def test_llama_3_divides_long_waves_keeps_short_ones_and_blends_between():
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }

    factors = llama3_factors(scaling, 500000.0, 64)

    for index, factor in enumerate(factors):
        wave = 2 * math.pi * 500000.0 ** (index / 64)
        if wave > 8192:
            assert factor == pytest.approx(8)
        elif wave < 2048:
            assert factor == pytest.approx(1)
        else:
            share = (8192 / wave - 1) / 3  # of the unscaled frequency
            assert 1 / factor == pytest.approx(share + (1 - share) / 8)


def test_factors_of_another_scaling_are_refused(file):
    file.writer.add_tensor("rope_freqs.weight", np.linspace(1, 9, HEAD // 2, dtype=np.float32))

    with pytest.raises(ConfigError, match="rope_freqs"):
        open_gguf(file.close())


def test_an_unknown_architecture_is_refused_naming_the_known_ones(tmp_path):
    file = GgufFile(tmp_path / "x.gguf", "mamba")
    file.vocabulary()

    with pytest.raises(ConfigError, match=r"'mamba'.*llama.*qwen2, qwen3"):
        open_gguf(file.close())


def test_a_quantisation_that_is_not_read_is_refused_naming_tensor_and_type(file):
    file.add("blk.0.ffn_up.weight", (FFN, 256), gguf.GGMLQuantizationType.TQ2_0)

    with pytest.raises(CheckpointError, match=r"'blk\.0\.ffn_up\.weight' is TQ2_0.*F32.*Q4_K"):
        open_gguf(file.close())


def test_a_tensor_without_a_place_is_refused(file):
    file.add("blk.0.surprise.weight", (HIDDEN,))

    with pytest.raises(CheckpointError, match=r"'blk\.0\.surprise\.weight' has no place"):
        open_gguf(file.close())


def test_a_truncated_file_is_refused(file, tmp_path):
    file.layer()
    whole = file.close().read_bytes()

    for length in (0, 3, 20, 1000, len(whole) // 2, len(whole) - 100):
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"cut\.gguf"):
            open_gguf(tmp_path / "cut.gguf")


def test_the_first_tensor_that_a_truncated_file_lacks_is_named(file, tmp_path):
    file.layer()
    whole = file.close().read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) - 4])

    with pytest.raises(CheckpointError) as refused:
        open_gguf(tmp_path / "cut.gguf")

    told = f"tensor 'output_norm.weight' ends at byte {len(whole):,}, and the file has"
    assert f"cut.gguf cannot be read as GGUF: {told}" in str(refused.value)
    assert "truncated, download it again" in str(refused.value)


def test_metadata_that_are_no_text_are_refused(file, tmp_path):
    file.layer()
    damaged = file.close().read_bytes().replace(b"{{ messages }}", b"{{ m\xc9ssages }}")
    (tmp_path / "damaged.gguf").write_bytes(damaged)

    with pytest.raises(CheckpointError, match=r"damaged\.gguf cannot be read as GGUF: 'utf-8'"):
        open_gguf(tmp_path / "damaged.gguf")


@pytest.mark.parametrize(
    ("heads", "kind"), [(0, "UINT32"), ([4, 4], "ARRAY"), ("many", "STRING")], ids=str
)
def test_a_size_that_is_none_is_refused_naming_its_key(file, heads, kind):
    file.layer()
    stated = file.writer.kv_data[0]["llama.attention.head_count"]
    stated.value, stated.type = heads, gguf.GGUFValueType[kind]

    with pytest.raises(CheckpointError, match=r"attention\.head_count is .*; it must be 1 or more"):
        open_gguf(file.close())


def test_padding_pieces_are_not_unknown_pieces(file):
    vocabulary = spm_vocabulary()
    types = [int(kind) for kind in vocabulary.types]
    types[0], types[-1] = int(PieceType.CONTROL), int(PieceType.UNKNOWN)
    file.writer.kv_data[-1]["tokenizer.ggml.token_type"].value = types
    file.writer.add_unk_token_id(0)

    read = open_gguf(file.close()).text.vocabulary

    assert read.kind is VocabularyKind.SENTENCEPIECE_BPE
    assert (read.types[0], read.types[-1]) == (PieceType.UNKNOWN, PieceType.UNUSED)


KINDS = gguf.GGUFValueType
HOSTILE = [
    *((number, KINDS.INT64) for number in (-1, 0, 1, 3, 2**31, 2**62, -(2**63))),
    *((number, KINDS.FLOAT64) for number in (math.nan, math.inf, -1.0, 0.0, 1e308, 1e-320, 2.5)),
    *((text, KINDS.STRING) for text in ("", "7", "many")),
    *((listed, KINDS.ARRAY) for listed in ([1], [1.5, 2.5], ["a"], [[1], [2]])),
    (True, KINDS.BOOL),
]


def whole_model(path: Path, architecture: str) -> GgufFile:
    """A file with every key that is looked at, and one layer."""
    file = GgufFile(path, architecture)
    file.vocabulary()
    file.layer()
    for key in ("attn_logit_softcapping", "final_logit_softcapping", "rope.scaling.factor"):
        file.writer.add_float32(f"{architecture}.{key}", 4.0)
    file.writer.add_rope_dimension_count(HEAD)
    file.writer.add_key_length(HEAD)
    file.writer.add_value_length(HEAD)
    file.writer.add_sliding_window(64)
    file.writer.add_string(f"{architecture}.rope.scaling.type", "yarn")
    file.writer.add_uint32(f"{architecture}.rope.scaling.original_context_length", 32)
    file.writer.add_unk_token_id(0)
    file.writer.add_add_bos_token(True)
    file.writer.add_string("tokenizer.ggml.pre", "default")
    return file


def read_all(path: Path) -> int:
    """Open a file, resolve and check its config, and read all tensors; return how many."""
    opened = open_gguf(path)
    decoder = resolve(find(opened.config), opened.config, opened.reader.names)
    check(decoder, {name: opened.reader.shape(name) for name in opened.reader.names})
    return len([opened.reader.read(name) for name in opened.reader.names])


def changes(path: Path) -> list[tuple[str, str, object, KINDS]]:
    """Every key of files of some architectures with every hostile value."""
    return [
        (architecture, key, value, kind)
        for architecture in ("llama", "qwen2", "gemma2", "phi3")
        for key in whole_model(path, architecture).writer.kv_data[0]
        for value, kind in HOSTILE
    ]


@pytest.mark.parametrize("count", [100, pytest.param(None, marks=pytest.mark.sweep)])
def test_any_value_of_any_key_is_read_or_refused(tmp_path, count):
    """The tensors are those of a llama: others get as far as to their names or shapes."""
    some = changes(tmp_path / "unwritten.gguf")
    for architecture, key, value, kind in random.Random(0).sample(some, count or len(some)):
        model = whole_model(tmp_path / "model.gguf", architecture)
        stated = model.writer.kv_data[0][key]
        stated.value, stated.type = value, kind
        with contextlib.suppress(EngineError):
            assert read_all(model.close()) == 11, (architecture, key, value)


def test_a_file_with_any_byte_of_its_head_changed_is_read_or_refused(tmp_path):
    whole = whole_model(tmp_path / "whole.gguf", "llama").close().read_bytes()
    drawn = np.random.default_rng(0)
    num_read = num_refused = 0
    for position in drawn.integers(0, 6000, 60):
        damaged = bytearray(whole)
        damaged[position] ^= int(drawn.integers(1, 256))
        (tmp_path / "damaged.gguf").write_bytes(damaged)
        try:
            read_all(tmp_path / "damaged.gguf")
            num_read += 1
        except EngineError:
            num_refused += 1

    assert num_read > 0
    assert num_refused > 0


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma", "gemma2"])
@pytest.mark.parametrize("rotated", [HEAD // 2, 2 * HEAD])
def test_heads_that_are_rotated_in_part_are_refused(tmp_path, architecture, rotated):
    file = whole_model(tmp_path / "part.gguf", architecture)
    file.writer.kv_data[0][f"{architecture}.rope.dimension_count"].value = rotated

    with pytest.raises(ConfigError, match=rf"dimension_count is {rotated}; .* must be {HEAD}"):
        open_gguf(file.close())


@pytest.mark.parametrize("rotated", [HEAD + 2, 16 * HEAD, 1024 * HEAD])
def test_phi_3_rotates_no_more_than_a_head(tmp_path, rotated):
    file = whole_model(tmp_path / "part.gguf", "phi3")
    file.writer.kv_data[0]["phi3.rope.dimension_count"].value = rotated

    with pytest.raises(ConfigError, match=rf"dimension_count is {rotated}; .* 2 to {HEAD}"):
        open_gguf(file.close())
