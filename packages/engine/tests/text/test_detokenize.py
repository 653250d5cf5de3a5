import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import shared_data
from spaninfer_engine.text import Detokenizer, StopFinder, Tokenizer, open_tokenizer
from vocabularies import spm_vocabulary, write_tiktoken

SPM = open_tokenizer(spm_vocabulary())


@pytest.fixture(scope="module")
def byte_bpe(tmp_path_factory):
    return open_tokenizer(write_tiktoken(tmp_path_factory.mktemp("t") / "gpt2.tiktoken"))


def one_by_one(tokenizer: Tokenizer, ids: list[int], **how: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, **how)
    return [detokenizer.push([token_id]) for token_id in ids] + [detokenizer.flush()]


@settings(deadline=None)
@given(st.lists(st.integers(0, SPM.vocab_size + 3)), st.booleans())
def test_any_ids_one_by_one_give_what_they_decode_to_at_once(ids, skip_special):
    pieces = one_by_one(SPM, ids, skip_special=skip_special)

    assert "".join(pieces) == SPM.decode(ids, skip_special=skip_special)


@settings(deadline=None)
@given(text=st.text())
def test_no_replacement_character_appears_for_text_that_has_none(byte_bpe, text):
    clean = text.replace("\ufffd", "")
    ids = byte_bpe.encode(clean, add_special=False)

    pieces = one_by_one(byte_bpe, ids)

    assert "".join(pieces) == clean
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_appears_when_its_last_byte_arrives():
    ids = SPM.encode("a🐈b", add_special=False)
    pieces = one_by_one(SPM, ids)

    assert [piece for piece in pieces if piece] == ["a", "🐈", "b"]
    assert len(ids) >= 6  # the cat is four byte tokens


def test_an_unfinished_character_becomes_a_replacement_at_the_end():
    ids = SPM.encode("a🐈", add_special=False)[:-1]

    assert one_by_one(SPM, ids)[-1] == "\ufffd"


def test_the_dummy_space_is_dropped_at_the_start_and_kept_in_a_continuation():
    ids = SPM.encode("the cat", add_special=False)

    assert one_by_one(SPM, ids)[0] == "the"
    assert one_by_one(SPM, ids, at_start=False)[0] == " the"


def test_special_tokens_are_left_out_unless_asked_for():
    ids = [*SPM.encode("the"), 2]

    assert "".join(one_by_one(SPM, ids)) == "the"
    assert "".join(one_by_one(SPM, ids, skip_special=False)) == "<s> the</s>"


def stopped(texts: list[str], *stops: str, include: bool = False) -> tuple[str, str | None]:
    finder = StopFinder(stops, include=include)
    out = "".join(finder.push(text) for text in texts) + finder.flush()
    return out, finder.hit


def test_a_stop_string_across_pieces_is_found_and_cut():
    assert stopped(["Hello w", "or", "ld, ", "and more"], "world") == ("Hello ", "world")


def test_a_stop_string_can_stay_in_the_text():
    assert stopped(["a.", "b"], ".", include=True) == ("a.", ".")


def test_what_might_begin_a_stop_string_is_held_back_until_it_does_not():
    finder = StopFinder(["</s>"])

    assert finder.push("x <") == "x "
    assert finder.push("/") == ""
    assert finder.push("b>") == "</b>"
    assert finder.hit is None


def test_text_that_ends_within_a_stop_string_is_given_out_at_the_end():
    assert stopped(["abc", "de"], "cdef") == ("abcde", None)


def test_nothing_comes_after_a_hit():
    finder = StopFinder(["."])

    assert finder.push("a.b") == "a"
    assert finder.push("more") == ""
    assert finder.flush() == ""


def test_without_stop_strings_text_passes():
    assert stopped(["a", "b"]) == ("ab", None)


@settings(deadline=None)
@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.data(),
)
def test_how_the_text_is_cut_does_not_change_where_it_stops(text, stops, data):
    ends = {text.find(stop) + len(stop): stop for stop in stops if stop in text}
    if ends:
        end = min(ends)
        hit = max((s for s in stops if text[:end].endswith(s)), key=len)
        expected = (text[: end - len(hit)], hit)
    else:
        expected = (text, None)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    assert stopped(pieces, *stops) == expected


REAL = [
    "tokenizers/mistral/tokenizer.model.v1",
    "tokenizers/mistral/mistral_instruct_tokenizer_240323.model.v3",
    "tokenizers/sentencepiece-test/test_ja_model.model",
    "tokenizers/qwen2/vocab.json",
    "tokenizers/qwen1/qwen.tiktoken",
    "tokenizers/cl100k/cl100k_base.tiktoken",
    "tokenizers/minimind/tokenizer.json",
    "tokenizers/t5-small/tokenizer.json",
    "tokenizers/bge-large-zh-v1.5/tokenizer.json",
    "models/stories260K-hf/tokenizer.model",
    "models/babyllama-105char-hf/tokenizer.model",
]


@pytest.mark.model
@pytest.mark.parametrize("name", REAL)
def test_real_tokenizers_give_the_same_text_one_by_one(name):
    tokenizer = open_tokenizer(shared_data(*name.split("/")))
    book = shared_data("text", "books", "wagahaiwa_nekodearu.txt").read_text("utf-8")[:2000]
    ids = tokenizer.encode(book, add_special=False)

    assert "".join(one_by_one(tokenizer, ids)) == tokenizer.decode(ids)

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    def any_ids(ids: list[int]) -> None:
        assert "".join(one_by_one(tokenizer, ids)) == tokenizer.decode(ids)

    any_ids()
