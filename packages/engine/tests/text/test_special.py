from hypothesis import given, settings
from hypothesis import strategies as st
from spaninfer_engine.text.special import Piece, SpecialFinder, SpecialToken


def cut(text: str, *tokens: SpecialToken) -> list[Piece]:
    return list(SpecialFinder(tokens).cut(text, ((0, len(text)),)))


def test_text_without_special_tokens_is_one_piece():
    assert cut("a <b> c") == [Piece("a <b> c", None, at_start=True)]
    assert cut("") == []


def test_a_text_is_cut_at_every_token():
    pieces = cut("<s>a<s><s>b", SpecialToken(1, "<s>"))

    assert pieces == [
        Piece("<s>", 1, at_start=True),
        Piece("a", None, at_start=False),
        Piece("<s>", 1, at_start=False),
        Piece("<s>", 1, at_start=False),
        Piece("b", None, at_start=False),
    ]


def test_of_two_tokens_that_begin_alike_the_longer_one_wins():
    pieces = cut("<a>b", SpecialToken(1, "<a"), SpecialToken(2, "<a>b"), SpecialToken(3, ">"))

    assert [piece.token_id for piece in pieces] == [2]


@settings(max_examples=300, deadline=None)
@given(st.sets(st.text("<|a.", min_size=1, max_size=6), min_size=1), st.text("<|a.", max_size=40))
def test_the_longest_of_many_tokens_is_found_at_the_earliest_place(texts, text):
    tokens = [SpecialToken(number, each) for number, each in enumerate(sorted(texts))]

    found = [piece.text for piece in cut(text, *tokens) if piece.token_id is not None]

    expected, at = [], 0
    while at < len(text):
        here = max((each for each in texts if text.startswith(each, at)), key=len, default="")
        expected += [here] if here else []
        at += len(here) or 1
    assert found == expected


def test_runs_of_every_length_are_tokens_of_their_own():
    runs = [SpecialToken(length, "\n" * length, is_text=True) for length in range(1, 129)]

    assert [piece.token_id for piece in cut("a" + "\n" * 300, *runs)] == [None, 128, 128, 44]


def test_a_token_takes_the_spaces_it_strips():
    left, right = (
        SpecialToken(1, "<l>", strips_left=True),
        SpecialToken(2, "<r>", strips_right=True),
    )

    assert [piece.text for piece in cut("a \n<l> b <r>\n c", left, right)] == [
        "a",
        "<l>",
        " b ",
        "<r>",
        "c",
    ]


def test_a_whole_word_is_not_found_within_another():
    pieces = cut("and an", SpecialToken(1, "an", whole_word=True))

    assert [(piece.text, piece.token_id) for piece in pieces] == [("and ", None), ("an", 1)]
