"""Properties of every bundled spec that need no config.json, encoders and towers included."""

from __future__ import annotations

import pytest
from spaninfer_engine.spec import load
from spaninfer_engine.spec.language.syntax import Name
from spaninfer_engine.spec.language.values import mentions
from spaninfer_engine.spec.registry import library
from spaninfer_engine.spec.vocabulary import SECTIONS


@pytest.mark.parametrize("name", library())
def test_literal_values_fit_the_type_of_their_key(name: str) -> None:
    spec = load(name)

    for (section, key), entry in spec.entries.items():
        word = SECTIONS[section].keys.get(key)
        if word is not None and entry.tree is None:
            accepted = word.type.accept(entry.text)
            assert word.type.accept(accepted) == accepted


@pytest.mark.parametrize("name", library())
def test_expressions_use_names_that_the_file_or_the_vocabulary_knows(name: str) -> None:
    spec = load(name)
    known = {"i", *spec.said("let"), *SECTIONS["dims"].keys}

    used = {
        node.path
        for entry in spec.entries.values()
        if entry.tree is not None
        for node in mentions(entry.tree)
        if isinstance(node, Name)
    }

    assert used <= known


@pytest.mark.parametrize("name", library())
def test_every_name_of_its_own_is_used(name: str) -> None:
    spec = load(name)

    used = {
        node.path
        for entry in spec.entries.values()
        if entry.tree is not None
        for node in mentions(entry.tree)
    }

    own = {key for key, entry in spec.said("let").items() if entry.source == spec.source}
    assert own <= used
