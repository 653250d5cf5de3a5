"""The commands below `spaninfer bench`."""

import json

import pytest
from spaninfer.bench import structured
from spaninfer.bench.page_cache import can_drop
from spaninfer_engine.startup.hardware import this_machine

SMALL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "vocab_size": 300,
    "max_position_embeddings": 700,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


@pytest.fixture
def folder(tmp_path):
    """A model that is a config.json."""
    home = tmp_path / "small"
    home.mkdir()
    (home / "config.json").write_text(json.dumps(SMALL))
    return home


def test_a_workload_is_timed_run_by_run_and_others_are_not(call, folder):
    result = call(
        *("bench", "engine", str(folder), "--weights", "dummy", "--backend", "cpu"),
        *("--only", "tpot_bs1,ttft_512,ttft_4000", "--runs", "2"),
    )

    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [record["workload"] for record in records] == ["tpot_bs1", "ttft_512"]
    assert [len(record["runs"]) for record in records] == [2, 10]
    assert {record["model"] for record in records} == {"small"}
    assert {record["weights"] for record in records} == {"dummy"}
    assert all(record["least"] <= record["median"] <= record["most"] for record in records)
    assert "ttft_4000: skipped, 4001 tokens exceed the context of 700" in result.stderr


@pytest.mark.slow
def test_a_start_is_timed_in_processes_of_their_own(call, folder):
    result = call(
        *("bench", "engine", str(folder), "--weights", "dummy", "--backend", "reference"),
        *("--only", "startup_cached", "--runs", "1"),
    )

    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [record["workload"] for record in records] == ["startup_cached"]
    assert [record["unit"] for record in records] == ["s"]


@pytest.mark.slow
def test_a_start_that_fails_says_why_in_one_sentence(capfd, refusal):
    said = refusal("bench", "engine", "nowhere", "--only", "startup_first")

    of_process = capfd.readouterr().err
    assert "there is no model 'nowhere'" in of_process
    assert len(of_process.splitlines()) == 1
    assert said == ""


def test_a_workload_that_there_is_not_is_refused_with_those_there_are(refusal):
    said = refusal("bench", "engine", "demo", "--only", "tpot_bs3")

    assert "'tpot_bs3'" in said
    assert "tpot_bs8" in said


def test_cpu_rows_that_there_are_not_are_refused_with_those_there_are(refusal):
    said = refusal("bench", "cpu", "--only", "decode")

    assert "'decode'" in said
    assert "decode64_bs8" in said


def test_a_peer_that_there_is_not_is_refused_with_those_there_are(refusal):
    said = refusal("bench", "cpu", "--only", "prefill256", "--peers", "llama.cpp,vllm")

    assert "'vllm'; there are llama.cpp, torch" in " ".join(said.split())


@pytest.mark.skipif(this_machine().has_cuda, reason="is about machines without a GPU")
def test_kernels_are_refused_in_one_sentence_where_there_is_no_gpu(refusal):
    assert "no CUDA device" in refusal("bench", "kernels")


def test_two_files_are_compared_beside_the_bars(call, tmp_path):
    first, second, bars = (tmp_path / name for name in ("a.jsonl", "b.jsonl", "bars.toml"))
    record = {"benchmark": "engine", "workload": "tpot_bs1", "unit": "ms", "model": "m"}
    first.write_text(json.dumps(record | {"median": 4.0, "least": 3.9, "most": 4.1}))
    second.write_text(json.dumps(record | {"median": 2.0, "least": 1.9, "most": 2.1}))
    bars.write_text('[[table]]\nof = { model = "m" }\nbars = [{ reach = 2.5 }]')

    both = call("bench", "compare", str(first), str(second), "--bars", str(bars))
    alone = call("bench", "compare", str(first), "--bars", str(bars))

    assert both.exit_code == alone.exit_code == 0
    assert "2.000" in both.stdout
    assert "✓" in both.stdout
    assert "✗" in alone.stdout


@pytest.mark.slow
def test_structured_output_is_measured_as_records(call, tmp_path, monkeypatch):
    """Of few requests at once: steps of 64 took twenty seconds."""
    monkeypatch.setattr(structured, "BATCHES", (1, 3))
    suite = tmp_path / "suite"
    suite.mkdir()
    groups = [{"schema": {"type": "integer"}}, {"schema": {"not": {}}}, {"schema": True}]
    (suite / "a.json").write_text(json.dumps(groups))

    result = call("bench", "structured", "demo", "--runs", "1", "--schemas", str(suite))

    records = [json.loads(line) for line in result.stdout.splitlines()]
    found = {record["workload"]: record for record in records}
    assert (found["compile p50"]["schemas"], found["compile p50"]["accepted"]) == (2, 1)
    assert found["mask p50"]["masks"] > 100
    steps = {f"step {kind} bs{size}" for kind in ("free", "guided") for size in (1, 3)}
    assert steps == {name for name in found if name.startswith("step")}
    for size in (1, 3):
        free, guided = (found[f"step {kind} bs{size}"]["median"] for kind in ("free", "guided"))
        more = found[f"guided over free bs{size}"]
        assert more["unit"] == "percent"
        assert more["median"] == pytest.approx(100 * (guided / free - 1), abs=1)
    assert all(record["benchmark"] == "structured" for record in records)


def test_hits_are_timed_from_every_tier(call, tmp_path):
    asked = ("--backend", "reference", "--prompt-len", "200", "--runs", "1")
    asked += ("--folder", str(tmp_path))
    sources = ("disk cold", "disk warm", "kv cache", "host")
    result = call("bench", "kv-tiers", "demo", *asked)

    records = [json.loads(line) for line in result.stdout.splitlines()]
    cached = {record["workload"]: record["cached"] for record in records}
    assert cached.pop("none") == 0
    assert cached == {
        f"{source} {share}": int(200 * share) // 32 * 32
        for share in (0.25, 0.5, 0.75, 0.9, 0.99)
        for source in (sources if can_drop(tmp_path) else sources[1:])
    }
    assert all(record["load"] is None or record["load"] >= 0 for record in records)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_turns_about_an_image_are_set_beside_as_many_tokens_of_text(call):
    result = call(*("bench", "turns", "--side", "128", "--runs", "2", "--memory", "32MiB"))

    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in result.stdout.splitlines()]
    names = [f"turn {turn}, {kind}" for turn in (1, 2, 10) for kind in ("image", "text")]
    assert [record["workload"] for record in records] == names
    for image, text in zip(records[::2], records[1::2], strict=True):
        assert abs(image["prompt_len"] - text["prompt_len"]) <= 2
        assert image["cpu_of_plain"] > 0
    assert records[-2]["cached"] > records[-2]["prompt_len"] / 2


def test_turns_are_refused_for_a_model_that_takes_no_images(call, folder):
    result = call("bench", "turns", str(folder), "--weights", "dummy", "--backend", "reference")

    assert result.exit_code != 0
    assert "takes no images: name a vision-language model" in result.stderr
