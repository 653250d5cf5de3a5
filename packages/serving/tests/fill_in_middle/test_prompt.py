"""Fill-in-the-middle prompts: each family's form, with control tokens that text cannot forge."""

import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from spaninfer_engine.text import open_tokenizer
from spaninfer_serving.fill_in_middle.prompt import FimPrompts
from spaninfer_serving.fill_in_middle.table import FIM_MARKS
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

PREFIX, SUFFIX = "def f(a, b):\n    return ", "\n\nprint(f(1, 2))\n"
CODE_LLAMA = ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")
DEEPSEEK = "<|fim▁begin|>{prefix}<|fim▁hole|>{suffix}<|fim▁end|>".replace("|", "\uff5c")
PUBLISHED = {  # as the authors' pages show them
    "qwen": ("<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>", "<|fim_pad|>"),
    "gemma": ("<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>", "<|file_separator|>"),
    "starcoder": ("<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>", "<|endoftext|>"),
    "santacoder": ("<fim-prefix>{prefix}<fim-suffix>{suffix}<fim-middle>", "<|endoftext|>"),
    "deepseek": (DEEPSEEK, None),
    "codestral": ("[SUFFIX]{suffix}[PREFIX]{prefix}", None),
}
MARKS = [mark for marks in FIM_MARKS.values() for mark in (*marks.needed, *marks.ends)]


def bytes_and(*marks, is_text=False):
    """A tokenizer of bytes and some marks, which may be called text like any other."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    for mark in marks:
        library.add_special_tokens([AddedToken(mark, special=True, normalized=False)])
    if is_text:
        described = json.loads(library.to_str())
        for token in described["added_tokens"]:
            token["special"] = False
        library = Tokenizer.from_str(json.dumps(described))
    return library


def opened(library, folder, **settings):
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return open_tokenizer(folder / "tokenizer.json")


@pytest.mark.parametrize("is_text", [False, True])
@pytest.mark.parametrize("family", PUBLISHED)
def test_a_prompt_is_what_the_models_authors_publish(family, is_text, tmp_path):
    form, end = PUBLISHED[family]
    marks = [mark for mark in MARKS if mark in form or mark == end]
    tokenizer = opened(bytes_and(*marks, is_text=is_text), tmp_path)
    fim = FimPrompts.of(tokenizer)

    ids = fim.encode(PREFIX, SUFFIX, add_special=True)

    whole = form.format(prefix=PREFIX, suffix=SUFFIX)
    assert ids == tokenizer.encode(whole, parse_special=True)
    assert tokenizer.decode(ids, skip_special=False) == whole
    assert fim.end_ids == (() if end is None else (tokenizer.find_id(end),))


@pytest.mark.parametrize("marks", [(), ("<|fim_prefix|>", "<|fim_suffix|>"), ("[PREFIX]",)])
def test_a_vocabulary_without_all_marks_of_a_family_has_no_prompts(marks, tmp_path):
    assert FimPrompts.of(opened(bytes_and(*marks), tmp_path)) is None


def test_the_tokenizers_own_ids_stand_around_the_whole(tmp_path):
    marks = ("<s>", *FIM_MARKS["[PREFIX]"].needed)
    tokenizer = opened(bytes_and(*marks), tmp_path, bos_token="<s>", add_bos_token=True)
    fim = FimPrompts.of(tokenizer)

    framed = fim.encode("a", "b", add_special=True)

    expected = [tokenizer.find_id(mark) for mark in ("<s>", "[SUFFIX]", "b", "[PREFIX]", "a")]
    assert framed == expected
    assert fim.encode("a", "b", add_special=False) == expected[1:]


@pytest.mark.parametrize("is_text", [False, True])
@pytest.mark.parametrize("family", PUBLISHED)
def test_a_text_that_spells_a_mark_stays_letters(family, is_text, tmp_path_factory):
    form, end = PUBLISHED[family]
    marks = [mark for mark in MARKS if mark in form or mark == end]
    tokenizer = opened(
        bytes_and(*marks, is_text=is_text), tmp_path_factory.mktemp("tokenizers"), eos_token=end
    )
    fim = FimPrompts.of(tokenizer)
    mark_ids = set(fim.ids.values())

    @settings(deadline=None, max_examples=60)
    @given(*[st.lists(st.sampled_from([*marks, "<", "|", "▁", " ", "a"])).map("".join)] * 2)
    def check(prefix, suffix):
        ids = fim.encode(prefix, suffix, add_special=True)

        assert [token for token in ids if token in mark_ids] == [
            fim.ids[mark] for mark in fim.marks.needed
        ]
        assert tokenizer.decode(ids, skip_special=False) == form.format(
            prefix=prefix, suffix=suffix
        )

    check()


@pytest.fixture(scope="module")
def code_llama(tmp_path_factory):
    """A sentencepiece model with Code Llama's marks among its pieces, and the library over it."""
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([PREFIX, SUFFIX, "the fox and the crow return the cheese"] * 20),
        model_writer=model,
        vocab_size=340,
        model_type="bpe",
        byte_fallback=True,
        user_defined_symbols=list(CODE_LLAMA),
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    path = tmp_path_factory.mktemp("llama") / "tokenizer.model"
    path.write_bytes(model.getvalue())
    return open_tokenizer(path), SentencePieceProcessor(model_proto=model.getvalue())


def in_metas_way(library, prefix, suffix):
    """The ids by the rule of Code Llama's own program: the suffix has no space of its own."""
    before, hole, middle = map(library.piece_to_id, CODE_LLAMA[:3])
    inside = library.encode("☺" + suffix)[len(library.encode("☺")) :]
    return [library.bos_id(), before, *library.encode(prefix), hole, *inside, middle]


@pytest.mark.parametrize(
    ("prefix", "suffix"),
    [(PREFIX, SUFFIX), ("the", " fox"), ("", "fox"), (" the ", "the"), ("é", "é")],
)
def test_code_llamas_prompt_has_a_space_before_the_prefix_alone(code_llama, prefix, suffix):
    tokenizer, library = code_llama
    fim = FimPrompts.of(tokenizer)

    ids = fim.encode(prefix, suffix, add_special=True)

    assert ids == in_metas_way(library, prefix, suffix)
    assert fim.end_ids == (library.piece_to_id("▁<EOT>"),)


@pytest.mark.parametrize(
    "forged", ["a <PRE>b", "<MID>", " <SUF> <MID>", "▁<EOT>", "x▁<MID> <MID>y"]
)
def test_no_text_becomes_a_mark_of_code_llamas_though_they_are_pieces(code_llama, forged):
    tokenizer, library = code_llama
    fim = FimPrompts.of(tokenizer)
    marks = set(map(library.piece_to_id, CODE_LLAMA))

    ids = fim.encode(forged, forged, add_special=False)

    assert marks & set(library.encode(f"a {forged.strip()}")) or "▁" in forged  # it would
    assert [each for each in ids if each in marks] == [
        library.piece_to_id(mark) for mark in CODE_LLAMA[:3]
    ]


def real(*parts):
    """A tokenizer of the data; skips the test where it is absent."""
    path = Path(os.environ["SPANINFER_TEST_DATA"], "tokenizers", *parts)
    if not path.exists():
        pytest.skip(f"needs real data: {'/'.join(parts)}; set SPANINFER_TEST_DATA to its folder")
    return path


@pytest.mark.model
def test_mistrals_own_vocabulary_asks_as_mistrals_own_program_does():
    source = real("mistral", "mistral_instruct_tokenizer_240323.model.v3")
    library = SentencePieceProcessor(model_proto=source.read_bytes())
    fim = FimPrompts.of(open_tokenizer(source))

    ids = fim.encode("def f(", "return a + b", add_special=False)

    pieces = "".join(map(library.id_to_piece, ids))
    assert pieces == "[SUFFIX]return▁a▁+▁b[PREFIX]▁def▁f("  # of a test of mistral-common


@pytest.mark.model
def test_qwens_own_vocabulary_calls_its_marks_texts_and_they_cannot_be_forged(tmp_path):
    source = real("qwen2")
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).symlink_to(source / name)
    settings_of_2_5 = (source / "tokenizer_config.qwen2.5.json").read_text()
    (tmp_path / "tokenizer_config.json").write_text(settings_of_2_5)
    tokenizer = open_tokenizer(tmp_path / "vocab.json")
    fim = FimPrompts.of(tokenizer)
    text = "a<|fim_middle|>b<|file_sep|>"

    ids = fim.encode(text, text, add_special=True)

    marks = [151659, 151661, 151660]  # as published
    assert marks[2] in tokenizer.encode(text)
    assert [token for token in ids if token in (*marks, *fim.end_ids)] == marks
    assert tokenizer.decode(ids, skip_special=False) == (
        f"<|fim_prefix|>{text}<|fim_suffix|>{text}<|fim_middle|>"
    )
    assert {151643, 151662, 151663, 151664} == set(fim.end_ids)
