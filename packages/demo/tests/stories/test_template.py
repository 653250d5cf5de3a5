from random import Random

import pytest
from stories.template import Choice, TemplateError, expand, parse


def texts(source, words=None, phrases=None):
    template = parse(source)
    return {expand(template, words or {}, phrases or {}, Random(seed)) for seed in range(60)}


def test_brackets_choose_and_nest():
    assert texts("a [b|c [d|e]]") == {"a b", "a c d", "a c e"}


def test_a_choice_may_be_empty():
    assert texts("a[| b]") == {"a", "a b"}


def test_references_find_words_before_phrases_and_keep_their_capital():
    phrases = {"said": Choice((parse("phrase"),)), "hero": Choice((parse("{said}"),))}

    assert texts("{Hero} {said}", {"hero": ("the fox",)}, phrases) == {"The fox phrase"}


def test_an_unknown_reference_is_named():
    with pytest.raises(TemplateError, match=r"\{nobody\}"):
        texts("{nobody}")


@pytest.mark.parametrize("source", ["[a|b", "{a", "x [y [z]"])
def test_an_open_bracket_is_an_error(source):
    with pytest.raises(TemplateError, match="not closed"):
        parse(source)
