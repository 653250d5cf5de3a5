"""Vocabulary sizes, byte decoding and control tokens on top of the tokenizers library."""

import pytest
from spaninfer_engine.text.fast import FastCodec
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers


def library_of(vocab, *added):
    library = Library(models.WordLevel(vocab=vocab, unk_token="a"))
    library.add_special_tokens(list(added))
    return library


@pytest.mark.parametrize(
    ("vocab", "added", "size"),
    [
        ({"a": 0, "b": 1, "c": 2}, [], 3),
        ({"a": 0, "b": 1, "c": 2}, ["<end>"], 4),
        ({"a": 0, "b": 7}, [], 8),
        ({"a": 3, "b": 4}, [], 5),
        ({"a": 0, "b": 9, "c": 9}, [], 10),
        ({"a": 0, "b": 1, "c": 1}, [], 2),
        ({}, [], 0),
    ],
)
def test_the_vocabulary_ends_behind_the_largest_id_whatever_ids_are_missing(vocab, added, size):
    assert FastCodec(library_of(vocab, *added)).vocab_size == size


def test_bytes_are_found_in_a_decoder_of_several_steps_and_text_without_any():
    library = library_of({"a": 0, "<0x41>": 1})
    assert FastCodec(library).token_bytes(1) == b" <0x41>"

    library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])

    assert FastCodec(library).token_bytes(1) == b"A"


def test_a_model_whose_control_tokens_are_pieces_like_any_others_spells_them_in_text():
    pieces = [("<unk>", 0.0), ("</s>", 0.0), *((char, -5.0) for char in "▁ab</s>")]
    library = Library(models.Unigram(pieces, unk_id=0))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.add_special_tokens(["<unk>", "</s>"])
    codec = FastCodec(library)

    ids = codec.encode("a</s>b", at_start=True)

    assert ids == [codec.find_id(piece) for piece in "▁a</s>b"]
    assert codec.encode("é", at_start=True)[-1] == 0  # unknown stays unknown
