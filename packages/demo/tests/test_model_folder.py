import json
import struct

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from spaninfer_demo import path
from stories.chats import plain_story
from tokenizers import Tokenizer

MAX_BYTES = 25_000_000  # of the folder


def read(name):
    return json.loads((path() / name).read_text(encoding="utf-8"))


def weight_shapes():
    """Return {name: (dtype, shape)} of the safetensors header."""
    with (path() / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return {n: (w["dtype"], tuple(w["shape"])) for n, w in header.items() if n != "__metadata__"}


def decoder_shapes(config):
    """Return {name: shape} of Qwen3-VL's decoder with a tied head."""
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
        f"model.language_model.layers.{i}.{name}.weight": shape
        for i in range(config["num_hidden_layers"])
        for name, shape in layer.items()
    }
    return shapes | {
        "model.language_model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.language_model.norm.weight": (hidden,),
    }


def tower_shapes(config):
    """Return {name: shape} of Qwen3-VL's tower."""
    hidden, ffn, out = config["hidden_size"], config["intermediate_size"], config["out_hidden_size"]
    merged, patch = hidden * config["spatial_merge_size"] ** 2, config["patch_size"]
    products = {
        "attn.qkv": (3 * hidden, hidden),
        "attn.proj": (hidden, hidden),
        "mlp.linear_fc1": (ffn, hidden),
        "mlp.linear_fc2": (hidden, ffn),
    }
    named = {f"blocks.{i}.{n}": s for i in range(config["depth"]) for n, s in products.items()}
    norms = {f"blocks.{i}.norm{n}": hidden for i in range(config["depth"]) for n in (1, 2)}
    mergers = {"merger": hidden}
    for i in range(len(config["deepstack_visual_indexes"])):
        mergers[f"deepstack_merger_list.{i}"] = merged
    for merger, normed in mergers.items():
        named |= {f"{merger}.linear_fc1": (merged, merged), f"{merger}.linear_fc2": (out, merged)}
        norms[f"{merger}.norm"] = normed
    named["patch_embed.proj"] = (hidden, 3, config["temporal_patch_size"], patch, patch)
    shapes = {f"{name}.weight": shape for name, shape in named.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in named.items()}
    shapes |= {
        f"{name}.{end}": (size,) for name, size in norms.items() for end in ("weight", "bias")
    }
    shapes["pos_embed.weight"] = (config["num_position_embeddings"], hidden)
    return {f"model.visual.{name}": shape for name, shape in shapes.items()}


def test_path_is_a_folder_with_everything_a_loader_needs():
    names = {file.name for file in path().iterdir()}

    assert names == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "video_preprocessor_config.json",
    }


def test_sizes_suit_the_kernels_that_are_measured_on_it():
    config = read("config.json")
    decoder, tower = config["text_config"], config["vision_config"]

    assert config["architectures"] == ["Qwen3VLForConditionalGeneration"]
    assert decoder["head_dim"] == tower["hidden_size"] // tower["num_heads"] == 64
    assert decoder["hidden_size"] % 128 == 0
    assert decoder["intermediate_size"] % 128 == 0
    assert decoder["max_position_embeddings"] >= 4096
    assert config["tie_word_embeddings"] is True


def test_the_folder_has_at_most_25_megabytes():
    assert sum(file.stat().st_size for file in path().iterdir()) <= MAX_BYTES


def test_weights_have_the_names_and_shapes_of_qwen3_vl_in_bfloat16():
    config, found = read("config.json"), weight_shapes()

    expected = decoder_shapes(config["text_config"]) | tower_shapes(config["vision_config"])
    assert {name: shape for name, (_, shape) in found.items()} == expected
    assert {dtype for dtype, _ in found.values()} == {"BF16"}


def test_every_token_has_a_row_of_the_embedding():
    tokenizer = Tokenizer.from_file(str(path() / "tokenizer.json"))

    assert tokenizer.get_vocab_size() <= read("config.json")["text_config"]["vocab_size"]


def test_ids_of_the_configuration_are_those_of_the_tokenizer():
    tokenizer = Tokenizer.from_file(str(path() / "tokenizer.json"))
    config = read("config.json")
    ends = [tokenizer.token_to_id(text) for text in ("<|im_end|>", "<|endoftext|>")]

    assert read("generation_config.json")["eos_token_id"] == ends
    assert config["text_config"]["eos_token_id"] == ends[0]
    for name, text in {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }.items():
        assert config[name] == tokenizer.token_to_id(text)


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


def rendered(messages):
    template = ImmutableSandboxedEnvironment().from_string(
        read("tokenizer_config.json")["chat_template"]
    )
    return template.render(messages=messages, add_generation_prompt=True)


def test_template_writes_a_conversation_and_the_start_of_an_answer():
    text = rendered(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello!"},
        ]
    )

    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHello!<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_template_writes_pictures_and_videos_where_they_stand():
    parts = [
        {"type": "image"},
        {"type": "text", "text": "What is this? And this: "},
        {"type": "video"},
    ]

    text = rendered([{"role": "user", "content": parts}])

    assert text == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What is this? And this: "
        "<|vision_start|><|video_pad|><|vision_end|><|im_end|>\n<|im_start|>assistant\n"
    )


def test_answers_end():
    assert read("generation_config.json")["max_new_tokens"] <= 512
