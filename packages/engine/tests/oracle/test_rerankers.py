"""Scores of decoders by the logits of two tokens, against transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoders import MAX_LEN, VOCAB
from families import Family
from numpy.typing import NDArray
from oracle import Oracle
from spaninfer_engine import CheckpointError, Engine, NotBuilt, TextTooLong, UnsupportedTask
from spaninfer_engine.config import BackendName
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

BACKENDS: tuple[BackendName, ...] = ("reference", "cpu", "torch")
YES, NO = 9, 10
WORDS = ("[UNK]", "fox", "crow", "grapes", "wine", "who", "stole", "judge", "answer", "yes", "no",
         "query:", "document:", "instruct:", "think")  # fmt: skip
MARKS = ("<|im_start|>", "<|im_end|>")
TEMPLATE = """<|im_start|> judge <|im_end|>
<|im_start|> instruct: {{ messages | selectattr("role", "eq", "system") | map(attribute="content")
| first | default("who stole") }}
query: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
document: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first -}}
<|im_end|>
{% if add_generation_prompt %}<|im_start|> answer think {% endif %}"""
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": MAX_LEN, "pad_token_id": None, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
DECODERS = {
    "tied": Family("Qwen3ForCausalLM", "Qwen3Config", {**SIZES, "tie_word_embeddings": True}),
    "untied": Family("Qwen3ForCausalLM", "Qwen3Config", {**SIZES, "tie_word_embeddings": False}),
    "with bias": Family("PhiForCausalLM", "PhiConfig", {
        **{key: SIZES[key] for key in SIZES if key != "head_dim"}, "num_key_value_heads": 4,
    }),
}  # fmt: skip
QUERY, DOCUMENTS = "who stole grapes", ["fox", "crow stole wine wine", ""]


def write_tokenizer(folder: Path) -> Tokenizer:
    library: Any = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    library.pre_tokenizer = WhitespaceSplit()
    library.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    library.save(str(folder / "tokenizer.json"))
    return library


def write_files(folder: Path, *, template: str = TEMPLATE, **files: Any) -> None:
    """Write what sentence-transformers saves of a CrossEncoder with a LogitScore.

    `files` are the contents of those of its `score`, `transformer` and `settings`.
    """
    modules = [
        {"idx": 0, "path": "", "type": "sentence_transformers.base.modules.Transformer"},
        {"idx": 1, "path": "1_LogitScore", "type": "sentence_transformers.x.LogitScore"},
    ]
    said = {
        "transformer_task": "text-generation",
        "modality_config": {"message": {"method": "forward", "format": "flat"}},
        "module_output_name": "causal_logits",
        "processing_kwargs": {"chat_template": {"add_generation_prompt": True}},
    }
    (folder / "1_LogitScore").mkdir(exist_ok=True)
    for path, content in (
        ("modules.json", modules),
        (
            "1_LogitScore/config.json",
            files.get("score") or {"true_token_id": YES, "false_token_id": NO},
        ),
        ("sentence_bert_config.json", {**said, **files.get("transformer", {})}),
        ("config_sentence_transformers.json", files.get("settings", {})),
    ):
        (folder / path).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(template)


@pytest.fixture(scope="module", params=DECODERS)
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Oracle, Path]:
    folder = tmp_path_factory.mktemp("reranker")
    oracle = Oracle(DECODERS[request.param], 5)
    write_tokenizer(oracle.save(folder))
    return oracle, folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A reranker without weights."""
    config = {**DECODERS["tied"].config_json(), "architectures": ["Qwen3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_tokenizer(tmp_path)
    write_files(tmp_path)
    return tmp_path


def engine(folder: Path, backend: BackendName = "reference", **options: Any) -> Engine:
    return Engine(folder, backend=backend, dtype="float32", **options)


def prompts(folder: Path, documents: Sequence[str], *system: str, **options: Any) -> list[Any]:
    """The ids of pairs, as transformers' tokenizer makes them of the template."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        chat_template=(folder / "chat_template.jinja").read_text(),
    )
    pairs = [
        [
            *({"role": "system", "content": text} for text in system),
            {"role": "query", "content": QUERY},
            {"role": "document", "content": document},
        ]
        for document in documents
    ]
    options = {"add_generation_prompt": True, **options}
    return [tokenizer.apply_chat_template(p, return_dict=False, **options) for p in pairs]


def last_logits(oracle: Oracle, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """[N V]: the logits behind each text's last token."""
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        return np.stack([oracle.model(torch.tensor([ids])).logits[0, -1].numpy() for ids in texts])


def sigmoid(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(1 / (1 + np.exp(-x)), np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_score_is_the_probability_of_yes_against_no_behind_the_template(
    saved: tuple[Oracle, Path], backend: BackendName
) -> None:
    oracle, folder = saved
    write_files(folder)
    logits = last_logits(oracle, prompts(folder, DOCUMENTS))
    both = np.exp(logits[:, [NO, YES]])

    with engine(folder, backend) as reranker:
        scores = reranker.score(QUERY, DOCUMENTS)
        assert reranker.tasks == {"score"}

    np.testing.assert_allclose(scores, both[:, 1] / both.sum(1), atol=1e-5)
    assert np.ptp(scores) > 1e-3


@pytest.mark.parametrize(
    ("score", "settings", "expected"),
    [
        ({"true_token_id": YES}, {}, lambda z: sigmoid(z[:, YES])),
        (
            {"true_token_id": NO, "false_token_id": None},
            {"activation_fn": "torch.nn.modules.linear.Identity"},
            lambda z: z[:, NO],
        ),
        (
            {"true_token_id": YES, "false_token_id": NO},
            {"activation_fn": "torch.nn.modules.activation.Sigmoid"},
            lambda z: sigmoid(z[:, YES] - z[:, NO]),
        ),
    ],
)
def test_tokens_and_activation_are_those_of_the_files(
    saved: tuple[Oracle, Path], score: Any, settings: Any, expected: Any
) -> None:
    oracle, folder = saved
    write_files(folder, score=score, settings=settings)

    with engine(folder) as reranker:
        scores = reranker.score(QUERY, DOCUMENTS)

    np.testing.assert_allclose(
        scores, expected(last_logits(oracle, prompts(folder, DOCUMENTS))), atol=1e-5
    )


def test_the_default_prompt_is_the_instruction_and_the_template_may_begin_no_answer(
    saved: tuple[Oracle, Path],
) -> None:
    oracle, folder = saved
    named = {"prompts": {"mine": "judge fox"}, "default_prompt_name": "mine"}
    write_files(folder, settings=named, transformer={"processing_kwargs": {}})
    ids = prompts(folder, DOCUMENTS, "judge fox", add_generation_prompt=False)
    logits = last_logits(oracle, ids)

    with engine(folder) as reranker:
        scores = reranker.score(QUERY, DOCUMENTS)

    np.testing.assert_allclose(scores, sigmoid(logits[:, YES] - logits[:, NO]), atol=1e-5)


def test_control_tokens_in_texts_are_letters(folder: Path) -> None:
    with engine(folder, weights="dummy") as reranker:
        (text,) = reranker.encode_pairs([QUERY], ["fox <|im_end|> crow"])
        (plain,) = reranker.encode_pairs([QUERY], ["fox [UNK] crow"])

    assert list(text.ids) == list(plain.ids)


def test_a_pair_that_is_too_long_keeps_the_templates_ending_where_it_may_be_cut(
    folder: Path,
) -> None:
    (whole,) = prompts(folder, ["fox"])
    ending = whole[-4:]  # <|im_end|> <|im_start|> answer think
    long = "fox " * 80
    (uncut,) = prompts(folder, [long])

    with engine(folder, weights="dummy") as reranker:
        with pytest.raises(TextTooLong):
            reranker.score(QUERY, [long])
        (text,) = reranker.encode_pairs([QUERY], [long], truncate=True)
        (short,) = reranker.encode_pairs([QUERY], ["fox"], truncate=True)

    assert list(text.ids) == [*uncut[: MAX_LEN - 4], *ending]
    assert list(short.ids) == whole


def test_a_reranker_does_nothing_else(folder: Path) -> None:
    with engine(folder, weights="dummy") as reranker:
        with pytest.raises(UnsupportedTask, match=r"scores \(Engine.score\) and generates nothing"):
            reranker.generate([1, 2])
        with pytest.raises(UnsupportedTask):
            reranker.embed("fox")
        with pytest.raises(UnsupportedTask):
            reranker.classify("fox")
        assert reranker.labels == ()


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"score": {"true_token_id": VOCAB}}, rf"true_token_id is {VOCAB}; .* 0 to {VOCAB - 1}"),
        ({"score": {"true_token_id": 1, "false_token_id": 2**40}}, "false_token_id is 1099511"),
        ({"score": {"false_token_id": 1}}, "true_token_id is None; it is a token's id"),
        ({"score": {"true_token_id": True}}, "true_token_id is True; it is a token's id"),
        ({"score": {"true_token_id": -1}}, "true_token_id is -1; it is a token's id"),
        ({"score": {"true_token_id": 1, "false_token_id": "no"}}, "false_token_id is 'no'"),
        ({"transformer": {"modality_config": 3}}, "modality_config is 3; it is a table"),
        (
            {"transformer": {"processing_kwargs": {"chat_template": {"add_generation_prompt": 1}}}},
            "add_generation_prompt is 1; it is true or false",
        ),
        (
            {"template": "{{ messages[0].content }}"},
            "no message of the role document, which scores",
        ),
        ({"template": "fox"}, "no message of the role query and none of document"),
        ({"template": "{{ raise_exception('not I') }}"}, "takes a chat template: .*not I"),
        ({"score": {"true_token_id": 1, "module_input_name": "scores"}}, "module_input_name"),
        ({"transformer": {"transformer_task": "any-to-any"}}, "transformer_task 'any-to-any'"),
        (
            {"transformer": {"modality_config": {"message": {"format": "structured"}}}},
            "messages of format 'structured'",
        ),
        (
            {"transformer": {"processing_kwargs": {"chat_template": {"chat_template": "other"}}}},
            "chat_template says chat_template, which is not built",
        ),
        ({"settings": {"activation_fn": "torch.nn.Softplus"}}, "activation_fn 'torch.nn.Softplus'"),
    ],
)
def test_what_cannot_be_meant_or_is_not_built_is_refused_by_name(
    folder: Path, files: dict[str, Any], told: str
) -> None:
    write_files(folder, **files)

    with pytest.raises((CheckpointError, NotBuilt), match=told):
        engine(folder, weights="dummy")


def test_an_encoder_and_a_head_that_caps_logits_have_no_such_scores(folder: Path) -> None:
    granite = Family("GraniteForCausalLM", "GraniteConfig", {"logits_scaling": 8.0})
    (folder / "config.json").write_text(
        json.dumps({**granite.config_json(), "architectures": ["GraniteForCausalLM"]})
    )
    with pytest.raises(NotBuilt, match="granite are not built: its head does more than multiply"):
        engine(folder, weights="dummy")
    bert = Family("BertModel", "BertConfig", {"hidden_size": 64, "num_attention_heads": 4})
    (folder / "config.json").write_text(
        json.dumps({**bert.config_json(), "architectures": ["BertModel"]})
    )
    with pytest.raises(NotBuilt, match="scores by logits are those of decoders; bert is none"):
        engine(folder, weights="dummy")
