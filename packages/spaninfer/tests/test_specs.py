"""The commands below `spaninfer spec`."""

import tomllib

import pytest
import spaninfer_demo
from spaninfer_engine.spec.describe import list_specs


def test_the_list_names_architectures_and_the_classes_they_are_for(call):
    result = call("spec", "list")

    assert result.exit_code == 0
    assert "qwen3_moe" in result.stdout
    assert "Qwen3ForCausalLM" in result.stdout
    assert "SmolLM3-3B" in result.stdout  # which that architecture was checked with


@pytest.mark.parametrize("name", [listed.name for listed in list_specs()])
def test_what_is_shown_of_an_architecture_is_a_spec_file_without_errors(call, tmp_path, name):
    shown = call("spec", "show", name)
    file = tmp_path / "mine.toml"
    file.write_text(shown.stdout, "utf-8")

    checked = call("spec", "check", str(file))

    assert tomllib.loads(shown.stdout)["hf"]
    assert checked.exit_code == 0, checked.stdout


def test_what_is_inherited_is_shown_with_where_it_comes_from(call):
    shown = call("spec", "show", "qwen3").stdout

    assert "# qwen2.toml" in shown
    assert 'qk_norm = "rms"' in shown


def test_an_unknown_architecture_is_refused_with_the_nearest(refusal):
    said = refusal("spec", "show", "qwen33")

    assert "'qwen33'" in said
    assert "qwen3" in said.split("nearest are", 1)[1]


def test_a_file_with_an_unknown_key_is_an_error_that_names_it(call, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('hf = ["MineForCausalLM"]\ninherits = "llama"\n[attn]\nscael = 1.0\n')

    result = call("spec", "check", str(file))

    assert result.exit_code == 1
    assert "mine.toml" in result.stdout
    assert "[attn] scael" in result.stdout


def test_a_checkpoint_that_a_file_does_not_describe_is_told_tensor_by_tensor(call, tmp_path):
    file = tmp_path / "mine.toml"
    without_norms = '[attn]\nqk_norm = "none"\n'
    file.write_text(f'hf = ["MineForCausalLM"]\ninherits = "qwen3_vl"\n{without_norms}')

    result = call("spec", "check", str(file), "--checkpoint", str(spaninfer_demo.path()))

    assert result.exit_code == 1
    assert "model.language_model.layers.0.self_attn.q_norm.weight" in result.stdout


def test_a_checkpoint_that_is_none_is_refused(refusal, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('hf = ["MineForCausalLM"]\ninherits = "llama"\n')

    assert "config.json" in refusal("spec", "check", str(file), "--checkpoint", str(tmp_path))
