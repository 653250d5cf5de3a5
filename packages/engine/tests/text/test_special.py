from spaninfer_engine.text.special import Piece, SpecialFinder, SpecialToken


def cut(text: str, *tokens: SpecialToken) -> list[Piece]:
    return list(SpecialFinder(tokens).cut(text))


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
