import pytest
from stories.grammar import article, listing, plural, tidy, title_case


@pytest.mark.parametrize(
    ("word", "expected"),
    [("fox", "a"), ("owl", "an"), ("hour", "an"), ("unicorn", "a"), ("one", "a"), ("Ox", "an")],
)
def test_article_follows_the_sound(word, expected):
    assert article(word) == expected


@pytest.mark.parametrize(
    ("noun", "expected"),
    [
        ("fox", "foxes"),
        ("mouse", "mice"),
        ("pony", "ponies"),
        ("monkey", "monkeys"),
        ("ant", "ants"),
    ],
)
def test_plural_knows_rules_and_exceptions(noun, expected):
    assert plural(noun) == expected


def test_listing_joins_the_last_item_with_and():
    assert listing(["a"]) == "a"
    assert listing(["a", "b", "c"]) == "a, b and c"


def test_title_case_leaves_small_words_inside_small():
    assert title_case("the fox and the owl") == "The Fox and the Owl"


def test_tidy_mends_articles_spaces_and_sentence_starts():
    assert tidy(" a owl  sat. it slept .") == "An owl sat. It slept."


def test_tidy_keeps_a_sentence_that_goes_on_after_a_cry():
    assert tidy('"help!" cried a otter. then it ran.') == '"Help!" cried an otter. Then it ran.'
