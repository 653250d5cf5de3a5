from __future__ import annotations

from pathlib import Path

import pytest
from spaninfer_engine.errors import UnknownArchitecture
from spaninfer_engine.spec import load, resolve, weights
from spaninfer_engine.spec.describe import Finding, check_file, list_specs, show
from spaninfer_engine.spec.registry import library

CONFIG = {
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text('hf = "Mine"\ninherits = "llama"\n')
    return path


def test_the_list_holds_every_architecture_with_kind_and_classes() -> None:
    listed = list_specs()

    assert [each.name for each in listed] == sorted(library())
    qwen3 = next(each for each in listed if each.name == "qwen3")
    assert (qwen3.kind, qwen3.hf) == ("decoder", ("Qwen3ForCausalLM", "Qwen3Model"))


def test_a_shown_spec_tells_values_their_source_and_their_meaning() -> None:
    shown = show("qwen3")

    rows = {
        row.key: row for section in shown.sections if section.name == "attn" for row in section.rows
    }
    assert (rows["qk_norm"].value, rows["qk_norm"].source) == ('"rms"', "qwen3.toml")
    assert rows["window"].source == "qwen2.toml"
    assert rows["scale"].source == "vocabulary"
    assert rows["softcap"].value == '"null"'
    assert rows["causal"].value == "true"
    assert rows["scale"].says == "factor on the scores"


def test_without_defaults_only_what_files_say_is_shown() -> None:
    shown = show("deepseek_v3", defaults=False)

    assert {row.source for section in shown.sections for row in section.rows} == {
        "deepseek_v2.toml", "deepseek_v3.toml",
    }  # fmt: skip


@pytest.mark.parametrize("name", library())
def test_every_kind_of_spec_can_be_shown(name: str) -> None:
    shown = show(name)

    assert {"dims", "weights"} <= {section.name for section in shown.sections}
    assert shown.kind == load(name).kind


def test_an_unknown_spec_cannot_be_shown() -> None:
    with pytest.raises(UnknownArchitecture):
        show("lama")


def test_a_good_file_has_no_findings(mine: Path) -> None:
    shapes = {weight.name: weight.shape for weight in weights(resolve(load("llama"), CONFIG))}

    assert check_file(mine) == ()
    assert check_file(mine, CONFIG) == ()
    assert check_file(mine, CONFIG, shapes) == ()


def test_a_misspelled_key_is_a_finding(mine: Path) -> None:
    mine.write_text("[norm]\nepz = 1")

    (finding,) = check_file(mine)

    assert finding.level == "error"
    assert finding.text == "mine.toml: [norm] epz: there is no such key; did you mean 'eps'?"


def test_unread_keys_are_warnings_and_differences_of_the_checkpoint_errors(mine: Path) -> None:
    shapes = {weight.name: weight.shape for weight in weights(resolve(load("llama"), CONFIG))}
    shapes["extra"] = shapes.pop("model.norm.weight")

    assert check_file(mine, {**CONFIG, "novelty": 1}, shapes) == (
        Finding("warning", "config.json: nothing reads novelty"),
        Finding("error", "model.norm.weight [64] is missing"),
        Finding("error", "extra [64] is not part of the model"),
    )


def test_what_a_spec_says_in_vain_is_a_note(mine: Path) -> None:
    mine.write_text(
        'inherits = "llama"\n[let]\na = 1\nb = 2\n[norm]\neps = "=b*rms_norm_eps"\n[moe]\nn = 4'
    )

    notes = [finding.text for finding in check_file(mine, CONFIG) if finding.level == "note"]

    assert notes == [
        "mine.toml: [let] a: nothing asks for it here",
        "mine.toml: [moe] n: nothing asks for it here",
    ]


def test_a_kind_that_is_not_served_is_a_note(mine: Path) -> None:
    mine.write_text('inherits = "t5"')

    (finding,) = check_file(mine, CONFIG)

    assert finding.level == "note"
