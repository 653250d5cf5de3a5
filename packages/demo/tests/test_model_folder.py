import json
import struct

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from spaninfer_demo import path
from stories.chats import plain_story
from tokenizers import Tokenizer

MAX_WEIGHT_BYTES = 12_000_000


def read(name):
    return json.loads((path() / name).read_text(encoding="utf-8"))


def weight_shapes():
    """Return {name: (dtype, shape)} of the safetensors header."""
    with (path() / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return {n: (w["dtype"], tuple(w["shape"])) for n, w in header.items() if n != "__metadata__"}


def qwen3_shapes(config):
    """Return {name: shape} of a Qwen3ForCausalLM with a tied head."""
    hidden, ffn, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (size,),
        "self_attn.k_norm": (size,),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
    }
    shapes = {
        f"model.layers.{i}.{name}.weight": shape
        for i in range(config["num_hidden_layers"])
        for name, shape in layer.items()
    }
    return shapes | {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }


def test_path_is_a_folder_with_everything_a_loader_needs():
    names = {file.name for file in path().iterdir()}

    assert names == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_sizes_suit_the_kernels_that_are_measured_on_it():
    config = read("config.json")

    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["head_dim"] == 64
    assert config["hidden_size"] % 128 == 0
    assert config["intermediate_size"] % 128 == 0
    assert config["max_position_embeddings"] >= 4096
    assert config["tie_word_embeddings"] is True


def test_weights_are_at_most_twelve_megabytes():
    assert (path() / "model.safetensors").stat().st_size <= MAX_WEIGHT_BYTES


def test_weights_have_the_names_and_shapes_of_qwen3_in_bfloat16():
    found = weight_shapes()

    assert {name: shape for name, (_, shape) in found.items()} == qwen3_shapes(read("config.json"))
    assert {dtype for dtype, _ in found.values()} == {"BF16"}


def test_vocabulary_has_one_id_per_row_of_the_embedding():
    tokenizer = Tokenizer.from_file(str(path() / "tokenizer.json"))

    assert tokenizer.get_vocab_size() == read("config.json")["vocab_size"]


def test_end_ids_are_those_of_the_tokenizer():
    tokenizer = Tokenizer.from_file(str(path() / "tokenizer.json"))
    ends = [tokenizer.token_to_id(text) for text in ("<|im_end|>", "<|endoftext|>")]

    assert read("generation_config.json")["eos_token_id"] == ends
    assert read("config.json")["eos_token_id"] == ends[0]


@pytest.mark.parametrize("text", ["Once upon a time", "é ß 漢字 🦊\n\ttabs", "<|im_end|>", ""])
def test_tokenizer_gives_every_text_back(text):
    tokenizer = Tokenizer.from_file(str(path() / "tokenizer.json"))

    ids = tokenizer.encode(text).ids

    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_tokenizer_needs_few_tokens_for_a_story():
    from random import Random

    story = plain_story(Random(1))
    tokenizer = Tokenizer.from_file(str(path() / "tokenizer.json"))

    assert len(story) / len(tokenizer.encode(story).ids) > 3.5


def test_template_writes_a_conversation_and_the_start_of_an_answer():
    template = ImmutableSandboxedEnvironment().from_string(
        read("tokenizer_config.json")["chat_template"]
    )
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello!"},
    ]

    text = template.render(messages=messages, add_generation_prompt=True)

    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHello!<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_answers_end():
    assert read("generation_config.json")["max_new_tokens"] <= 512
