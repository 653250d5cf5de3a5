"""LogitScore of sentence-transformers: which logits of a decoder are the score of a pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from spaninfer_engine.errors import CheckpointError, NotBuilt, shown
from spaninfer_engine.json_file import read_json
from spaninfer_engine.spec.pooling_nodes import PairPrompt

ScoreActivation = Literal["sigmoid", "identity"]


@dataclass(frozen=True, slots=True)
class ScoreTokens:
    """The tokens whose logits make the score, its activation, and the prompt of a pair."""

    source: Path
    true_id: int
    false_id: int | None
    activation: ScoreActivation
    pairs: PairPrompt


def read_score_tokens(
    file: Path, transformer: Mapping[str, Any], settings: Mapping[str, Any], instruction: str
) -> ScoreTokens:
    """Return what a LogitScore's config says, and the files of the modules in front of it.

    `transformer` is sentence_bert_config.json, `settings` config_sentence_transformers.json.
    Raises CheckpointError for what is damaged, NotBuilt for what is not built.
    """
    if not file.is_file():
        raise CheckpointError(f"{file} is missing: modules.json beside the weights names it")
    said = read_json(file)
    true_id, false_id = said.get("true_token_id"), said.get("false_token_id")
    _check_id(file, "true_token_id", true_id)
    if false_id is not None:
        _check_id(file, "false_token_id", false_id)
    _check_input(file, said, transformer)
    generation = _template_options(file.parent.parent / "sentence_bert_config.json", transformer)
    pairs = PairPrompt(instruction, generation)
    return ScoreTokens(file, int(str(true_id)), false_id, _activation(file, settings), pairs)


def _check_id(file: Path, key: str, value: object) -> None:
    if type(value) is not int or value < 0:
        raise CheckpointError(f"{file}: {key} is {shown(value)}; it is a token's id, 0 or more")


def _check_input(file: Path, said: Mapping[str, Any], transformer: Mapping[str, Any]) -> None:
    """Refuse scores of other rows than the logits of a text's last token."""
    source, task = said.get("module_input_name"), transformer.get("transformer_task")
    if source not in (None, "causal_logits"):
        raise NotBuilt(f"{file}: module_input_name {shown(source)} is not built; causal_logits is")
    if task not in (None, "text-generation"):
        raise NotBuilt(f"{file}: transformer_task {shown(task)} is not built; text-generation is")


def _template_options(file: Path, transformer: Mapping[str, Any]) -> bool:
    """Return whether the template is to begin an answer; refuse other values."""
    message = _table(file, _table(file, transformer, "modality_config"), "message")
    if message.get("format") not in (None, "flat", "auto"):
        raise NotBuilt(f"{file}: messages of format {shown(message['format'])} are not built")
    options = dict(_table(file, _table(file, transformer, "processing_kwargs"), "chat_template"))
    generation = options.pop("add_generation_prompt", False)
    options.pop("restore_suffix", None)  # the ending is always kept
    if type(generation) is not bool:
        raise CheckpointError(
            f"{file}: add_generation_prompt is {shown(generation)}; it is true or false"
        )
    if options:
        raise NotBuilt(
            f"{file}: processing_kwargs.chat_template says {', '.join(options)}, which is not "
            "built; add_generation_prompt is"
        )
    return generation


def _table(file: Path, said: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = said.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: {key} is {shown(value)}; it is a table")
    return value


def _activation(file: Path, settings: Mapping[str, Any]) -> ScoreActivation:
    """Return what makes a score of the difference: a class by its path, the sigmoid unasked."""
    named = settings.get("activation_fn")
    match "sigmoid" if named is None else str(named).rpartition(".")[2].lower():
        case "sigmoid":
            return "sigmoid"
        case "identity":
            return "identity"
    raise NotBuilt(f"{file}: activation_fn {shown(named)} is not built; Sigmoid and Identity are")
