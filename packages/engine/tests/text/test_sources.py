import json
import re
import sys

import pytest
from shared_data import shared_data
from spaninfer_engine.errors import CheckpointError, ConfigError
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.load.gguf.text import open_text
from spaninfer_engine.text import open_tokenizer
from spaninfer_engine.text.bytemap import to_alphabet
from spaninfer_engine.text.spm import as_model
from spaninfer_engine.vocab import PieceType, Vocabulary, VocabularyKind
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, processors
from vocabularies import spm_vocabulary, write_json, write_tiktoken


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(as_model(spm_vocabulary()))
    return path


def settings(folder, **values):
    write_json(folder / "tokenizer_config.json", values)


def test_a_model_file_begins_texts_with_bos_unless_told_otherwise(model_file):
    assert open_tokenizer(model_file).encode("the")[0] == 1
    settings(model_file.parent, add_bos_token=False, add_eos_token=True)
    assert open_tokenizer(model_file).encode("the")[-1] == 2
    assert 1 not in open_tokenizer(model_file).encode("the")


def test_end_ids_of_the_model_join_those_of_the_tokenizer(model_file):
    assert open_tokenizer(model_file, end_ids={7, 9}).eos_ids == {2, 7, 9}


def test_added_tokens_beyond_a_model_file_are_known(model_file):
    first = len(spm_vocabulary().pieces)
    settings(
        model_file.parent,
        added_tokens_decoder={
            str(first): {"content": "<|end|>", "special": True, "rstrip": True},
            str(first + 1): {"content": "<table>", "special": False},
        },
    )
    tokenizer = open_tokenizer(model_file)

    assert tokenizer.vocab_size == first + 2
    assert tokenizer.encode("<|end|>  ", parse_special=True) == [1, first]
    assert first not in tokenizer.encode("<|end|>")
    assert first + 1 in tokenizer.encode("<table>")


def write_byte_bpe(folder, **config):
    vocab = {to_alphabet(bytes([byte])): byte for byte in range(256)} | {"Ġt": 256, "he": 257}
    write_json(folder / "vocab.json", vocab)
    (folder / "merges.txt").write_text("#version: 0.2\nĠ t\nh e\n", encoding="utf-8")
    settings(folder, **config)
    return folder / "vocab.json"


def test_vocab_and_merges_are_cut_by_the_rule_of_the_class(tmp_path):
    added = {"258": {"content": "<|im_end|>", "special": True}}
    path = write_byte_bpe(
        tmp_path,
        tokenizer_class="Qwen2Tokenizer",
        added_tokens_decoder=added,
        eos_token="<|im_end|>",
        bos_token=None,
    )

    tokenizer = open_tokenizer(path)

    assert tokenizer.encode(" the<|im_end|>", parse_special=True) == [256, 257, 258]
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")  # composed first
    assert tokenizer.eos_ids == {258}
    assert tokenizer.bos_id is None


def test_added_tokens_of_an_older_folder_are_known(tmp_path):
    path = write_byte_bpe(tmp_path, tokenizer_class="GPT2Tokenizer", eos_token="<|end|>")
    write_json(tmp_path / "added_tokens.json", {"<|end|>": 260, "<b>": 261})

    tokenizer = open_tokenizer(path)

    assert tokenizer.eos_ids == {260}
    assert tokenizer.special_ids == {260}
    assert tokenizer.encode("<b>") == [261]


def test_an_unknown_class_is_refused_naming_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed

    with pytest.raises(ConfigError, match=r"OddTokenizer.*pip install transformers"):
        open_tokenizer(write_byte_bpe(tmp_path, tokenizer_class="OddTokenizer"))


@pytest.mark.slow
def test_a_tokenizer_that_only_transformers_knows_is_built_by_it(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\ncat\n##s\n")
    settings(tmp_path, tokenizer_class="BertTokenizer", eos_token="[SEP]")

    tokenizer = open_tokenizer(tmp_path)

    assert tokenizer.encode("The cats", add_special=False) == [4, 5, 6]
    assert tokenizer.decode([4, 5, 6]) == "the cats"
    assert tokenizer.eos_ids == {3}


def test_a_vocabulary_without_merges_is_refused(tmp_path):
    path = write_byte_bpe(tmp_path, tokenizer_class="GPT2Tokenizer")
    (tmp_path / "merges.txt").unlink()

    with pytest.raises(CheckpointError, match=r"no merges\.txt"):
        open_tokenizer(path)


@pytest.mark.parametrize(
    ("vocab", "merges", "problem"),
    [
        (["a"], "", "holds list, expected a JSON object"),
        ({"a": "b"}, "", "is no byte-level BPE"),
        ({"a": -1}, "", "is no byte-level BPE"),
        ({"a": 0, "b": 1}, "a c", "is no byte-level BPE: .*`c` out of vocabulary"),
    ],
)
def test_a_damaged_vocabulary_is_refused_naming_its_file(tmp_path, vocab, merges, problem):
    path = write_byte_bpe(tmp_path, tokenizer_class="GPT2Tokenizer")
    write_json(path, vocab)
    (tmp_path / "merges.txt").write_text(merges)

    with pytest.raises(CheckpointError, match=rf"vocab\.json {problem}"):
        open_tokenizer(path)


def test_ids_that_contradict_the_vocabulary_are_refused(tmp_path):
    library = Library(models.WordLevel({"a": 0, "<s>": 1}, unk_token="a"))
    library.save(str(tmp_path / "tokenizer.json"))
    settings(tmp_path, added_tokens_decoder={"5": {"content": "<s>", "special": True}})

    with pytest.raises(CheckpointError, match=r"'<s>' the id 5, but in the vocabulary it is 1"):
        open_tokenizer(tmp_path / "tokenizer.json")


def test_what_a_tokenizer_json_puts_around_a_text_is_kept_unless_told_otherwise(tmp_path):
    library = Library(models.WordLevel({"a": 0, "<s>": 1, "</s>": 2}, unk_token="a"))
    library.add_special_tokens(["<s>", "</s>"])
    library.post_processor = processors.TemplateProcessing(
        single="<s> $0 </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    library.save(str(tmp_path / "tokenizer.json"))

    assert open_tokenizer(tmp_path / "tokenizer.json").encode("a") == [1, 0, 2]
    settings(tmp_path, add_bos_token=False, bos_token="<s>")
    assert open_tokenizer(tmp_path / "tokenizer.json").encode("a") == [0, 2]


def test_a_token_is_special_if_either_file_says_so(tmp_path):
    library = Library(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_tokens(["<end>"])
    library.save(str(tmp_path / "tokenizer.json"))
    settings(tmp_path, added_tokens_decoder={"2": {"content": "<end>", "special": True}})

    tokenizer = open_tokenizer(tmp_path / "tokenizer.json")

    assert tokenizer.special_ids == {2}
    assert 2 not in tokenizer.encode("a <end>")
    assert tokenizer.encode("a <end>", parse_special=True) == [0, 2]


def test_named_tokens_of_an_older_folder_are_known(tmp_path):
    path = write_byte_bpe(tmp_path, tokenizer_class="GPT2Tokenizer")
    write_json(tmp_path / "special_tokens_map.json", {"eos_token": {"content": "he"}})

    assert open_tokenizer(path).eos_ids == {257}


def test_a_rank_file_of_qwen_brings_its_special_tokens(tmp_path):
    tokenizer = open_tokenizer(write_tiktoken(tmp_path / "qwen.tiktoken"))

    assert tokenizer.vocab_size == 266 + 208
    assert tokenizer.encode("<|im_start|>", parse_special=True) == [267]


def test_byte_pieces_of_a_container_make_a_tokenizer():
    pieces = [to_alphabet(bytes([byte])) for byte in range(256)] + ["he", "<|end|>", "<b>"]
    types = [PieceType.NORMAL] * 257 + [PieceType.CONTROL, PieceType.USER_DEFINED]
    tokenizer = open_tokenizer(
        Vocabulary(
            VocabularyKind.BYTE_BPE,
            pieces=tuple(pieces),
            types=tuple(types),
            merges=("h e",),
            pre="qwen2",
            eos_id=257,
        )
    )

    assert tokenizer.encode("he<b><|end|>", parse_special=True) == [256, 258, 257]
    assert 257 not in tokenizer.encode("<|end|>")
    assert tokenizer.eos_ids == {257}


def test_an_unknown_word_rule_of_a_container_is_refused():
    vocabulary = Vocabulary(VocabularyKind.BYTE_BPE, pieces=(), types=(), pre="novel")

    with pytest.raises(ConfigError, match=r"'novel'.*gpt-2, phi-2"):
        open_tokenizer(vocabulary)


@pytest.mark.parametrize(
    ("name", "error"), [("tokenizer.json", CheckpointError), ("words.txt", ConfigError)]
)
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, name, error):
    (tmp_path / name).write_text("{}")

    with pytest.raises(error, match=name):
        open_tokenizer(tmp_path / name)


@pytest.mark.model
@pytest.mark.parametrize("model", ["stories260K", "babyllama-105char"])
def test_the_golden_prompts_are_cut_into_the_golden_ids(model):
    golden = json.loads(shared_data("models", "golden_greedy_numpy_fp.json").read_text())
    cases = [case for case in golden if case["model"].startswith(model.split("-")[0])]
    checkpoint = open_checkpoint(shared_data("models", f"{model}-hf"))
    assert checkpoint.tokenizer is not None
    tokenizer = open_tokenizer(checkpoint.tokenizer, end_ids=checkpoint.end_ids)

    assert cases
    for case in cases:
        assert tokenizer.encode(case["prompt"]) == case["prompt_ids"]
        assert tokenizer.decode(case["prompt_ids"] + case["greedy_ids"]) == case["text"]


@pytest.mark.model
@pytest.mark.parametrize("name", ["stories260K.bin", "stories260K-f32.gguf"])
def test_pieces_in_a_container_cut_text_as_the_model_file_they_came_from(name):
    checkpoint = open_checkpoint(shared_data("models", "stories260K", name))
    assert checkpoint.tokenizer is not None
    ours = open_tokenizer(checkpoint.tokenizer)
    truth = open_tokenizer(shared_data("models", "stories260K", "tok512.model"))

    for book in shared_data("text", "books").iterdir():
        text = re.sub(" +", " ", book.read_text("utf-8")[5000:9000]).strip()
        # the model file also drops spaces at the ends and of several, which no container says
        assert ours.encode(text) == truth.encode(text)
    assert (ours.bos_id, ours.eos_ids) == (truth.bos_id, truth.eos_ids)


@pytest.mark.model
@pytest.mark.parametrize("name", ["gpt-2", "phi-3"])
def test_real_vocabularies_of_gguf_cut_the_published_texts_into_the_published_ids(name):
    path = shared_data("gguf_vocab", f"ggml-vocab-{name}.gguf")
    tokenizer = open_tokenizer(open_text(path).vocabulary)
    texts = path.with_name(path.name + ".inp").read_text("utf-8").split("\n__ggml_vocab_test__\n")
    ids = path.with_name(path.name + ".out").read_text().split("\n")

    assert len(texts) == len(ids) > 40
    for text, expected in zip(texts, ids, strict=True):
        assert tokenizer.encode(text, add_special=False) == [int(i) for i in expected.split()]


@pytest.mark.model
@pytest.mark.parametrize("name", ["minimind", "t5-small", "bge-large-zh-v1.5"])
def test_real_tokenizer_json_files_cut_text_as_the_library_does(name):
    path = shared_data("tokenizers", name, "tokenizer.json")
    ours, truth = open_tokenizer(path), Library.from_file(str(path))

    for book in shared_data("text", "books").iterdir():
        text = book.read_text("utf-8")[5000:9000]
        assert ours.encode(text) == truth.encode(text).ids
