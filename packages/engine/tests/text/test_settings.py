"""TokenizerSettings from damaged or hostile files."""

from contextlib import suppress

import pytest
from spaninfer_engine.errors import CheckpointError, EngineError
from spaninfer_engine.load.folders.folder import read_template
from spaninfer_engine.text import open_tokenizer
from spaninfer_engine.text.bytemap import to_alphabet
from spaninfer_engine.text.settings import NAMED, read_settings
from spaninfer_engine.text.special import SpecialToken
from spaninfer_engine.text.spm import as_model
from tokenizers import Tokenizer as Library
from tokenizers import models
from vocabularies import spm_vocabulary, write_json

CONFIG, MAP, OLDER = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
NO_TEXT = [5, True, ["x"], {}, {"content": 5}, {"content": None}, "\ud800"]
NO_FLAG = [0, "true", [], {}]
NO_TOKEN = [
    {"x": {"content": "a"}},
    {"-1": {"content": "a"}},
    {"99999999999": {"content": "a"}},
    {"\u0663": {"content": "a"}},
    {"0": None},
    {"0": {}},
    {"0": {"content": ""}},
    {"0": {"content": ["a"]}},
    {"0": {"content": "\ud800"}},
    {"0": {"content": "a", "special": "yes"}},
    {"0": {"content": "a", "lstrip": []}},
    {"0": {"content": "a", "single_word": 1}},
]


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        *((CONFIG, name, value) for name in NAMED[:2] for value in NO_TEXT),
        *((MAP, name, 5) for name in NAMED),
        *((CONFIG, name, value) for name in ("add_bos_token", "legacy") for value in NO_FLAG),
        *((CONFIG, "tokenizer_class", value) for value in (True, 5, ["x"], {})),
        *((MAP, "additional_special_tokens", value) for value in (5, "x", {"a": 1}, [5], [None])),
        *((CONFIG, "added_tokens_decoder", value) for value in (5, [], ["x"], "x", *NO_TOKEN)),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_file_key_and_what_is_allowed(
    tmp_path, file, key, value
):
    write_json(tmp_path / file, {key: value})

    with pytest.raises(CheckpointError) as refused:
        read_settings(tmp_path)

    message = str(refused.value)
    assert message.startswith(f"{tmp_path / file}: {key}")
    assert "allowed is" in message or "a token's id is" in message
    assert len(message) < 500 + len(str(tmp_path))


@pytest.mark.parametrize("token", [{"": 3}, {"a": "1"}, {"a": -1}, {"a": 1 << 31}, {"a": True}])
def test_added_tokens_that_are_none_are_refused(tmp_path, token):
    write_json(tmp_path / OLDER, token)

    with pytest.raises(CheckpointError, match=r"added_tokens\.json: .* allowed is a text"):
        read_settings(tmp_path)


@pytest.mark.parametrize("file", [CONFIG, MAP, OLDER])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 100_000, "nested deeper than can be read"),
        (b'{"a":' * 100_000, "nested deeper than can be read"),
        (b'{"a": "\xff"}', "is not JSON"),
        (b"", "is not JSON"),
        (b"[]", "expected a JSON object"),
    ],
)
def test_a_file_that_is_no_object_of_json_is_refused_by_name(tmp_path, file, content, reason):
    (tmp_path / file).write_bytes(content)

    with pytest.raises(CheckpointError, match=f"{file}.*{reason}"):
        read_settings(tmp_path)


def test_settings_that_published_models_have_are_read(tmp_path):
    write_json(tmp_path / MAP, {"eos_token": {"content": "<old>"}, "pad_token": "<pad>"})
    write_json(
        tmp_path / CONFIG,
        {
            "eos_token": "<end>",
            "bos_token": None,
            "unk_token": "",
            "add_bos_token": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "additional_special_tokens": ["<a>", {"content": "<b>"}],
            "added_tokens_decoder": {"7": {"content": "<end>", "special": True, "rstrip": True}},
            "model_max_length": 1e30,
        },
    )

    settings = read_settings(tmp_path)

    assert settings.named_texts == ["<end>", "<pad>"]
    assert settings.token("bos_token") is None
    assert (settings.flag("add_bos_token"), settings.flag("legacy")) == (False, None)
    assert settings.stated == (SpecialToken(7, "<end>", strips_right=True),)


def test_a_template_that_is_not_in_utf_8_is_refused_with_its_file(tmp_path):
    (tmp_path / "chat_template.jinja").write_bytes("{{ 'é' }}".encode("utf-16"))

    with pytest.raises(CheckpointError, match=r"chat_template\.jinja is not text in UTF-8.*--chat"):
        read_template(tmp_path)


ODD = [
    *(b"", b"{}", b"[]", b"null", b"5", b"\xff\xfe\x00", b"\x00", b"a b\nc d\n", b"\xc3\x28 a\n"),
    *(b"[" * 100_000, b'{"a":' * 10_000, b'{"a": "\xff"}', b'{"a":1' + b"0" * 5000 + b"}"),
    *(b'{"":300}', b'{"x":"1"}', b'{"x":-1}', b'{"x":1.5}', b'{"x":99999999999999999999}'),
    *(b"YQ== 0\nYQ== 1\n", b"YQ== -1\n", b"YQ== 99999999999999999999\n"),
]


def write_tokenizer(folder, kind):
    match kind:
        case "tokenizer.json":
            Library(models.WordLevel({"a": 0, "<unk>": 1}, "<unk>")).save(str(folder / kind))
        case "tokenizer.model":
            (folder / kind).write_bytes(as_model(spm_vocabulary()))
        case "vocab.json":
            write_json(folder / kind, {to_alphabet(bytes([byte])): byte for byte in range(256)})
            (folder / "merges.txt").write_text("#version: 0.2\na b\n", encoding="utf-8")
    write_json(folder / CONFIG, {"tokenizer_class": "GPT2Tokenizer"})
    return folder / kind


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("tokenizer.json", "tokenizer.json"),
        ("tokenizer.model", "tokenizer.model"),
        ("vocab.json", "vocab.json"),
        ("vocab.json", "merges.txt"),
        ("qwen.tiktoken", "qwen.tiktoken"),
    ],
)
def test_whatever_a_tokenizer_file_holds_nothing_but_an_error_of_ours_comes_of_it(
    tmp_path, kind, file
):
    path = write_tokenizer(tmp_path, kind)
    for content in ODD:
        (tmp_path / file).write_bytes(content)
        with suppress(EngineError):
            tokenizer = open_tokenizer(path)
            ids = tokenizer.encode("a </s> b", parse_special=True)
            assert isinstance(tokenizer.decode(ids), str)


@pytest.mark.parametrize("value", [*NO_TEXT[:-1], *NO_FLAG, *NO_TOKEN])
@pytest.mark.parametrize("kind", ["tokenizer.json", "tokenizer.model", "vocab.json"])
def test_settings_drawn_at_random_are_used_or_refused(tmp_path, kind, value):
    path = write_tokenizer(tmp_path, kind)
    for key in (*NAMED, "added_tokens_decoder", "added_tokens", "legacy"):
        write_json(tmp_path / CONFIG, {"tokenizer_class": "GPT2Tokenizer"} | {key: value})
        with suppress(EngineError):
            tokenizer = open_tokenizer(path)
            ids = tokenizer.encode("a </s> b", parse_special=True)
            assert isinstance(tokenizer.decode(ids), str)
