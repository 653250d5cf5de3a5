import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor
from shared_data import shared_data
from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.text.spm import SentencePieceCodec, as_model, with_control_pieces
from spaninfer_engine.vocab import PieceType
from vocabularies import TEXT, spm_vocabulary


def codec(**changes: object) -> SentencePieceCodec:
    return SentencePieceCodec(as_model(spm_vocabulary(**changes)), source="test")


def test_pieces_written_as_a_model_are_read_back_by_the_library():
    vocabulary = spm_vocabulary()

    library = SentencePieceProcessor(model_proto=as_model(vocabulary))

    ids = range(library.vocab_size())
    assert tuple(map(library.id_to_piece, ids)) == vocabulary.pieces
    assert tuple(map(library.get_score, ids)) == pytest.approx(vocabulary.scores)
    assert [i for i in ids if library.is_byte(i)] == list(range(3, 259))
    assert [i for i in ids if library.is_control(i)] == [1, 2]


def test_the_piece_with_the_highest_score_is_merged_first():
    ids = codec().encode("the cat", at_start=True)

    assert [spm_vocabulary().pieces[i] for i in ids] == ["▁the", "▁cat"]


def test_characters_without_a_piece_become_bytes():
    spm = codec()

    ids = spm.encode("🐈", at_start=False)

    assert b"".join(map(spm.token_bytes, ids)) == " 🐈".encode()


def test_the_dummy_space_is_as_the_vocabulary_says():
    assert codec().strips_leading_space
    assert not codec(add_space_prefix=False).strips_leading_space
    assert (
        codec(add_space_prefix=False).encode("cat", at_start=True)[0]
        != codec().encode("cat", at_start=True)[0]
    )


def test_text_after_a_special_token_gets_a_dummy_space_only_in_legacy_models():
    model = as_model(spm_vocabulary())
    modern = SentencePieceCodec(model, source="test", prefixes_all=False)

    assert modern.encode("the", at_start=True) == codec().encode("the", at_start=False)
    assert modern.token_bytes(modern.encode("the", at_start=False)[0]) == b"t"


def test_user_defined_pieces_can_be_made_control_pieces():
    pieces = spm_vocabulary().pieces
    at = pieces.index("▁mat")
    types = list(spm_vocabulary().types)
    types[at] = PieceType.USER_DEFINED
    model = as_model(
        spm_vocabulary(pieces=(*pieces[:at], "<mark>", *pieces[at + 1 :]), types=types)
    )

    before = SentencePieceProcessor(model_proto=model)
    after = SentencePieceProcessor(
        model_proto=with_control_pieces(model, ["<mark>"], source="test")
    )

    assert at in before.encode("the <mark> cat")
    assert at not in after.encode("the <mark> cat")
    assert after.is_control(at)
    assert after.encode(TEXT) == before.encode(TEXT)


@pytest.mark.parametrize("damage", [b"", b"no model", b"\x0a\xff\xff"])
def test_what_is_no_model_is_refused_naming_the_source(damage):
    with pytest.raises(CheckpointError, match=r"x\.model"):
        SentencePieceCodec(with_control_pieces(damage, ["x"], source="x.model"), source="x.model")


def test_a_model_with_a_piece_that_is_no_text_is_refused_before_anybody_draws_the_piece():
    damaged = as_model(spm_vocabulary()).replace("▁mat".encode(), b"\xff\xfe\xfdmat")

    with pytest.raises(CheckpointError, match=r"x\.model is damaged: the piece b'.*mat' is not"):
        SentencePieceCodec(damaged, source="x.model")


@pytest.mark.model
@pytest.mark.parametrize(
    "name",
    [
        "tokenizers/mistral/tokenizer.model.v1",
        "tokenizers/mistral/mistral_instruct_tokenizer_241114.model.v7",
        "tokenizers/sentencepiece-test/test_model.model",
        "tokenizers/nmt/vocab.joint.spm",
        "models/stories260K-hf/tokenizer.model",
    ],
)
def test_rewriting_a_real_model_changes_nothing_else(name):
    model = shared_data(*name.split("/")).read_bytes()

    assert with_control_pieces(model, [], source=name) == model


@pytest.mark.model
def test_pieces_of_a_real_model_cut_text_as_the_model_itself():
    path = shared_data("tokenizers", "mistral", "tokenizer.model.v1")
    truth = SentencePieceProcessor(model_file=str(path))
    ids = range(truth.vocab_size())
    kinds = [
        (truth.is_unknown, PieceType.UNKNOWN),
        (truth.is_control, PieceType.CONTROL),
        (truth.is_byte, PieceType.BYTE),
    ]
    ours = codec(
        pieces=tuple(map(truth.id_to_piece, ids)),
        scores=tuple(map(truth.get_score, ids)),
        types=tuple(
            next((kind for is_kind, kind in kinds if is_kind(i)), PieceType.NORMAL) for i in ids
        ),
    )

    @settings(max_examples=100, deadline=None)
    @given(st.text())
    def any_text(text: str) -> None:
        assert ours.encode(text, at_start=True) == truth.encode(text)

    any_text()
    for book in shared_data("text", "books").iterdir():
        text = book.read_text("utf-8")[5000:9000]
        assert ours.encode(text, at_start=True) == truth.encode(text)
