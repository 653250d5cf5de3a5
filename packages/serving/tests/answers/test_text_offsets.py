"""Offsets of tokens, against the places of their bytes in the whole text."""

import random

import pytest
from spaninfer_serving.answers.text_offsets import TextOffsets


class Pieces:
    """Token 0 is the first of the pieces, and so on."""

    strips_leading_space = False

    def __init__(self, *pieces, special_ids=()):
        self.pieces, self.special_ids = pieces, frozenset(special_ids)

    def token_bytes(self, token_id):
        return self.pieces[token_id]


def offsets(words, ids=None, **options):
    found = TextOffsets(words, **options)
    return [found.of(each) for each in (range(len(words.pieces)) if ids is None else ids)]


def test_letters_are_counted():
    assert offsets(Pieces(b"ab", b"", b" c", b"d")) == [0, 2, 2, 4]


def test_a_token_that_goes_on_with_a_character_has_the_offset_of_its_beginning():
    whole = "a\U0001f98aé!".encode()  # one character of each length but three

    pieces = [b"a", whole[1:3], whole[3:4], whole[4:6], whole[6:]]

    assert offsets(Pieces(*pieces)) == [0, 1, 1, 1, 2]


def test_a_character_that_is_never_whole_is_one_of_the_text():
    pieces = [b"\xf0\x9f", b"a", b"\x80", b"b", b"\xe2"]
    text = b"".join(pieces).decode(errors="replace")

    found = offsets(Pieces(*pieces))

    assert (text, found) == ("\ufffda\ufffdb\ufffd", [0, 1, 2, 3, 4])


@pytest.mark.parametrize("seed", range(20))
def test_however_a_text_is_cut_each_offset_is_where_the_first_byte_lies(seed):
    chance = random.Random(seed)
    text = "".join(chance.choices("aé\u20ac\U0001f98a \n", k=40))
    data = text.encode()
    cuts = sorted({0, *chance.choices(range(1, len(data)), k=25)})
    owner = [at for at, char in enumerate(text) for _ in char.encode()]

    words = Pieces(*(data[a:b] for a, b in zip(cuts, [*cuts[1:], len(data)], strict=True)))

    assert offsets(words) == [owner[cut] for cut in cuts]


def test_tokens_that_a_text_leaves_out_take_no_place():
    words = Pieces(b"<s>", b"a", b"</s>", special_ids=[0, 2])

    assert offsets(words, hidden={0, 2}) == [0, 0, 1]
    assert offsets(words) == [0, 3, 4]


def test_an_answer_begins_behind_the_text_of_an_echoed_prompt():
    words = Pieces(b"<s>", b" a", b" b\xf0", b"c", special_ids=[0])
    words.strips_leading_space = True

    found = offsets(words, [0, 1, 2, 3, 0], echoed=([0, 1, 2], "a b\ufffd"))

    assert found == [0, 0, 1, 4, 5]


def test_no_token_of_an_echoed_prompt_lies_behind_its_text():
    words = Pieces(b"<prefix>", b"ab", b"<suffix>", b"c")

    assert offsets(words, [0, 1, 2, 3], echoed=([0, 1, 2], "ab")) == [0, 2, 2, 2]
