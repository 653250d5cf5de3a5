import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spaninfer_engine.text import Tokenizer, open_tokenizer
from spaninfer_engine.text.fast import FastCodec
from spaninfer_engine.text.special import SpecialToken
from spaninfer_engine.text.tokenizer import Frame
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers
from vocabularies import TEXT, spm_vocabulary

SPM = open_tokenizer(spm_vocabulary())
BOS, EOS = 1, 2


def test_a_text_gets_its_bos_but_never_a_second_one():
    assert SPM.encode("the") == [BOS, *SPM.encode("the", add_special=False)]
    assert SPM.encode("<s>the", parse_special=True).count(BOS) == 1


def test_control_tokens_in_text_are_letters_unless_they_are_to_be_parsed():
    as_text = SPM.encode("the</s>", add_special=False)
    parsed = SPM.encode("the</s>", add_special=False, parse_special=True)

    assert EOS not in as_text
    assert parsed == [*SPM.encode("the", add_special=False), EOS]
    assert SPM.decode(as_text) == "the</s>"


def test_control_tokens_are_found_only_in_the_ranges_given():
    ids = SPM.encode("the</s></s>", add_special=False, parse_special=((7, 11),))

    assert ids == [*SPM.encode("the</s>", add_special=False), EOS]
    for cut_off in ((6, 10), (7, 10), (8, 11)):
        ranges = (cut_off,)
        assert EOS not in SPM.encode("the</s></s>", add_special=False, parse_special=ranges)


@settings(deadline=None)
@given(st.text())
def test_text_survives_the_way_to_ids_and_back(text):
    clean = text.replace("▁", " ")  # the same thing to sentencepiece

    assert SPM.decode(SPM.encode(clean)) == clean


@settings(deadline=None)
@given(st.text())
def test_a_text_inside_another_has_no_space_of_the_vocabularys_own(text):
    clean = text.replace("▁", " ").encode("utf-8", "replace").decode()

    ids = SPM.encode_inside(clean)

    assert b"".join(map(SPM.token_bytes, ids)).decode() == clean


def test_a_text_inside_another_is_cut_as_by_the_vocabulary_without_a_space_in_front():
    bare = open_tokenizer(spm_vocabulary(add_space_prefix=False))

    for text in (TEXT, "the cat", "cat</s>"):
        assert SPM.encode_inside(text) == bare.encode(text, add_special=False)
        assert bare.encode_inside(text) == bare.encode(text, add_special=False)


def test_halves_of_surrogate_pairs_are_joined_or_replaced():
    whole = SPM.encode("🐈")

    assert SPM.encode("\ud83d\udc08") == whole
    assert SPM.decode(SPM.encode("a\ud83d")) == "a\ufffd"


def test_ids_beyond_the_vocabulary_are_empty():
    assert SPM.token_bytes(SPM.vocab_size) == b""
    assert SPM.decode([SPM.vocab_size + 7]) == ""


def test_special_ids_are_left_out_of_text_on_request():
    ids = [BOS, *SPM.encode("the cat", add_special=False), EOS]

    assert SPM.decode(ids) == "the cat"
    assert SPM.decode(ids, skip_special=False) == "<s> the cat</s>"
    assert SPM.special_ids == {0, BOS, EOS}


def metaspace(scheme: str) -> Library:
    """A word-level vocabulary with a space put before the first word, or before every one."""
    words = {word: i for i, word in enumerate(["<unk>", "▁the", "the", "▁cat", "<s>"])}
    library = Library(models.WordLevel(words, unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    library.decoder = decoders.Metaspace(prepend_scheme=scheme)
    library.add_special_tokens(["<s>"])
    return library


@pytest.mark.parametrize(("scheme", "inner"), [("first", 2), ("always", 1), ("never", 2)])
def test_a_word_after_a_special_token_is_cut_as_the_library_does_in_whole_texts(scheme, inner):
    truth = metaspace(scheme)
    codec = FastCodec(metaspace(scheme))
    ours = Tokenizer(codec, codec.special_tokens)

    ids = ours.encode("the<s>the cat", parse_special=True)

    assert ids == truth.encode("the<s>the cat").ids
    assert ids[2] == inner
    assert ours.decode(ids[:1]) == "the"


def test_text_tokens_are_recognised_everywhere_and_shown():
    tokens = [SpecialToken(900, "<table>", is_text=True), SpecialToken(901, "<end>")]
    codec = FastCodec(metaspace("never"))
    tokenizer = Tokenizer(codec, tokens, frame=Frame(after=(901,)))

    assert tokenizer.encode("<table><end>", add_special=False)[0] == 900
    assert tokenizer.encode("<end>", parse_special=True) == [901]
    assert tokenizer.special_ids == {901}
    assert tokenizer.decode([900, 901]) == "<table>"
    assert tokenizer.vocab_size == 902


def test_a_piece_is_found_by_its_text():
    assert SPM.find_id("</s>") == EOS
    assert SPM.find_id("▁cat") == spm_vocabulary().pieces.index("▁cat")
    assert SPM.find_id("no such piece") is None


def test_longer_text_is_cut_the_same_in_every_call():
    assert SPM.encode(TEXT) == SPM.encode(TEXT)
    assert SPM.decode(SPM.encode(TEXT)) == TEXT
