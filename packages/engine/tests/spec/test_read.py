from __future__ import annotations

from pathlib import Path

import pytest
from spaninfer_engine.errors import SpecError
from spaninfer_engine.spec import ModelSpec, load
from spaninfer_engine.spec.read import MAX_ANCESTORS
from spaninfer_engine.spec.vocabulary import SECTIONS
from spaninfer_engine.spec.vocabulary.words import REQUIRED


def spec(folder: Path, text: str, name: str = "mine") -> ModelSpec:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return load(path)


def test_a_spec_keeps_what_it_says_and_takes_the_rest_from_the_vocabulary(tmp_path: Path) -> None:
    mine = spec(tmp_path, 'hf = "MyModel"\n[attn]\nbias = "q,k,v"\n')

    assert (mine.name, mine.hf, mine.kind) == ("mine", ("MyModel",), "decoder")
    assert mine.entry("attn", "bias").text == "q,k,v"
    assert mine.entry("attn", "bias").source == "mine.toml"
    assert mine.entry("attn", "scale").text == "=head_dim**-0.5"
    assert mine.entry("attn", "scale").source == "vocabulary"


def test_a_child_replaces_keys_and_adds_to_lists_of_what_to_ignore(tmp_path: Path) -> None:
    spec(
        tmp_path, 'hf = "A"\nkind = "vlm"\n[config]\nignore = ["a"]\n[norm]\neps = 1e-6\n', "parent"
    )

    child = spec(
        tmp_path, 'inherits = "parent"\n[config]\nignore = ["b"]\n[norm]\ntype = "layer"\n'
    )

    assert child.kind == "vlm"
    assert child.hf == ()  # names of config.json are not inherited
    assert child.entry("config", "ignore").text == ("a", "b")
    assert child.entry("norm", "eps").source == "parent.toml"
    assert child.entry("norm", "type").source == "mine.toml"


def test_a_file_inherits_from_its_neighbours_and_from_bundled_specs(tmp_path: Path) -> None:
    assert spec(tmp_path, 'inherits = "qwen3"').entry("attn", "qk_norm").text == "rms"


def test_a_file_may_refine_the_bundled_spec_of_its_own_name(tmp_path: Path) -> None:
    mine = spec(tmp_path, 'inherits = "qwen3"\n[norm]\neps = 1e-6', "qwen3")

    assert mine.entry("attn", "qk_norm").text == "rms"
    assert mine.entry("norm", "eps").text == 1e-6


@pytest.mark.parametrize(
    ("text", "section", "key", "hint"),
    [
        ("[atn]\nbias = 1", "", "atn", "did you mean 'attn'"),
        ("[attn]\nbais = 1", "attn", "bais", "did you mean 'bias'"),
        ("[weights.encodr]\nq = 'x'", "weights", "encodr", "did you mean"),
        ("inherit = 'llama'", "", "inherit", "did you mean 'inherits'"),
        ("inherits = 'lama'", "", "inherits", "no architecture is called 'lama'"),
        ("tower = 'lama'", "", "tower", "no architecture is called 'lama'"),
        ("kind = 'decodr'", "", "kind", "expected one of decoder"),
        ("hf = 5", "", "hf", "expected texts"),
        ("[attn]\nscale = '=1 +'", "attn", "scale", "expected a value"),
        ("[attn]\nscale = '=f(1)'", "attn", "scale", "did not expect"),
        ("[weights]\nprefix = ['$a']", "weights", "prefix", "not computed"),
        ("a = [", "", "file", "is not TOML"),
    ],
)
def test_an_error_names_file_section_key_and_what_was_meant(
    tmp_path: Path, text: str, section: str, key: str, hint: str
) -> None:
    with pytest.raises(SpecError) as caught:
        spec(tmp_path, text)

    assert (caught.value.source, caught.value.section, caught.value.key) == (
        "mine.toml",
        section,
        key,
    )
    assert hint in caught.value.problem


def test_a_tower_may_be_that_of_another_spec(tmp_path: Path) -> None:
    spec(tmp_path, '[attn]\nbias = "q"\n[media]\nimage_token = 1\n[vision]\nheads = 3\n'
         '[vision.weights]\npos = "there"\n[vision.expect]\nsize = [1]\n', "seeing")  # fmt: skip
    spec(tmp_path, '[attn]\nbias = "k"\n[vision]\nheads = 5\n[audio]\nheads = 7\n', "parent")

    mine = spec(
        tmp_path, 'inherits = "parent"\ntower = "seeing"\n[vision.weights]\npatch = "here"\n'
    )

    assert mine.entry("attn", "bias").text == "k"
    assert mine.entry("media", "image_token").text == 1
    assert mine.entry("vision", "heads").text == 3
    assert mine.entry("vision", "heads").source == "seeing.toml"
    assert mine.entry("audio", "heads").text == 7
    assert mine.entry("vision.weights", "pos").text == "there"
    assert mine.entry("vision.weights", "patch").text == "here"
    assert mine.entry("vision.expect", "size").text == (1,)


def test_circles_of_inheritance_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('inherits = "b"')
    (tmp_path / "b.toml").write_text('inherits = "a"')

    with pytest.raises(SpecError, match="a -> b -> a does not end"):
        load(tmp_path / "a.toml")

    (tmp_path / "b.toml").write_text('tower = "a"')
    with pytest.raises(SpecError, match="a -> b -> a does not end"):
        load(tmp_path / "a.toml")


def test_a_long_line_of_ancestors_is_refused(tmp_path: Path) -> None:
    for index in range(MAX_ANCESTORS + 2):
        (tmp_path / f"n{index}.toml").write_text(f'inherits = "n{index + 1}"')

    with pytest.raises(SpecError, match="does not end"):
        load(tmp_path / "n0.toml")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.toml: file: cannot be read"):
        load(tmp_path / "none.toml")


def test_a_spec_cannot_be_changed(tmp_path: Path) -> None:
    mine = spec(tmp_path, "[norm]\neps = 1e-6")

    with pytest.raises(TypeError):
        mine.entries["norm", "eps"] = None  # type: ignore[index]


def test_every_default_of_the_vocabulary_reads_and_fits_its_type() -> None:
    llama = load("llama")

    for section, words in SECTIONS.items():
        for key, word in words.keys.items():
            entry = llama.entry(section, key)
            assert word.says
            if word.default is not REQUIRED and entry.tree is None:
                word.type.accept(entry.text)
