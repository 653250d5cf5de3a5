"""Conversations about pictures, and decodes beside them, of a small random Qwen2-VL."""

import json

import pytest
from spaninfer.bench import arguments, shapes
from spaninfer.bench.vision import conversations, run, stalls
from spaninfer.bench.vision.clients import ask_all
from spaninfer_engine import Engine

SMALL = {
    **shapes.SHAPES["qwen2-vl-7b"],
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
    "vocab_size": 4500,
    "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
    "vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2},
    "torch_dtype": "float32",
}
ASKED = ("--backend", "reference", "--side", "128", "--runs", "1", "--max-len", "512")


@pytest.fixture
def shape(monkeypatch):
    """The name of a shape that is a small one meanwhile."""
    monkeypatch.setattr(shapes, "SHAPES", {"small-vl": SMALL})
    monkeypatch.setattr(arguments, "SHAPES", {"small-vl": SMALL})
    return "small-vl"


def records_of(result):
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("is_cached", [True, False])
def test_each_turn_has_a_rate_and_the_wait_for_the_first_token(call, shape, monkeypatch, is_cached):
    monkeypatch.setattr(run, "CONVERSATIONS", {"one": 1, "many": 3})
    monkeypatch.setattr(conversations, "OUTPUT_LEN", 4)
    options = () if is_cached else ("--no-prefix-cache",)

    found = records_of(call("bench", "vision", shape, *ASKED, "--only", "one,many", *options))

    assert [(each["workload"], each["turn"], each["of"]) for each in found] == [
        (f"{at_once} at a time", turn, of)
        for at_once in (1, 3)
        for turn in (1, 2, 3)
        for of in ("answers", "first token")
    ]
    assert {each["unit"] for each in found} == {"requests/s", "ms"}
    assert [len(each["runs"]) for each in found if each["unit"] == "ms"] == [4, 4, 4] * 2
    lens = [each["prompt_len"] for each in found[::2]]
    assert lens[0] < lens[1] < lens[2]
    cached = [each["cached"] for each in found[::2]]
    assert all(cached[1:3]) if is_cached else not any(cached)
    assert {each["settings"]["prefix_cache"] for each in found} == {is_cached}
    assert {each["weights"] for each in found} == {"dummy"}


def test_decodes_are_watched_alone_and_beside_pictures(call, shape, monkeypatch):
    monkeypatch.setattr(stalls, "DECODES", 2)
    monkeypatch.setattr(stalls, "PICTURES_S", 10.0)

    alone, beside = records_of(
        call("bench", "vision", shape, *ASKED, "--only", "stalls", "--seconds", "0.5")
    )

    assert alone["workload"] == "2 decodes"
    assert beside["workload"] == "2 decodes beside 10 pictures a second"
    for each in (alone, beside):
        assert each["unit"] == "ms"
        assert 0 < each["least"] <= each["median"] <= each["p99"] <= each["most"]


def test_clients_see_the_first_token_before_the_answer_ends():
    with Engine("demo", backend="reference", memory="16MiB") as engine:
        hello = [{"role": "user", "content": "Hello."}]

        burst = ask_all(engine, [hello] * 3, at_once=2, output_len=20)

    assert len(burst.answers) == 3
    assert all(0 < each.first_ms < 1e3 * burst.seconds for each in burst.answers)
    assert burst.rate == pytest.approx(3 / burst.seconds)


def test_a_model_that_takes_no_images_is_refused(call, tmp_path):
    fields = {name: value for name, value in SMALL.items() if name != "vision_config"}
    text = {**fields, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    (tmp_path / "config.json").write_text(json.dumps({**text, "rope_scaling": None}))

    result = call("bench", "vision", str(tmp_path), "--weights", "dummy", "--backend", "reference")

    assert result.exit_code != 0
    assert "takes no images: name a vision-language model" in result.stderr
