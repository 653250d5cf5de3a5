"""Text assets of a model: tokenizer, chat template, and its authors' sampling defaults."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from spaninfer_engine.config import EngineConfig
from spaninfer_engine.errors import ConfigError, InvalidSampling
from spaninfer_engine.load import Checkpoint
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.spec import Encoder, Model
from spaninfer_engine.text.ids_only import wordless_tokenizer
from spaninfer_engine.text.sources import open_tokenizer
from spaninfer_engine.text.template import ChatTemplate
from spaninfer_engine.text.templated_pairs import check_template
from spaninfer_engine.text.tokenizer import Tokenizer


class UnusableDefaults(UserWarning):
    """generation_config.json holds sampling values that are out of range."""


@dataclass(frozen=True, slots=True)
class Texts:
    """A checkpoint's tokenizer, chat template and sampling defaults."""

    tokenizer: Tokenizer
    template: ChatTemplate
    sampling: SamplingParams  # where a request brings none


def open_texts(asked: EngineConfig, checkpoint: Checkpoint, model: Model, name: str) -> Texts:
    """Open what a checkpoint says about texts; `name` is the model's, for messages.

    Raises CheckpointError for what is on disk, ConfigError for a chat template that was requested
    and cannot be used.
    """
    tokenizer = _tokenizer(checkpoint, model)
    template = ChatTemplate(
        _template_source(asked, checkpoint),
        origin=name,
        special_tokens=checkpoint.special_tokens,
    )
    if asked.chat_template is not None:  # better refused now than at every request
        template.render([{"role": "user", "content": "Hello!"}])
    if isinstance(model, Encoder) and model.text.pairs is not None:
        check_template(template, model.text.pairs)
    return Texts(tokenizer, template, _sampling(checkpoint))


def _tokenizer(checkpoint: Checkpoint, model: Model) -> Tokenizer:
    """Return the checkpoint's tokenizer; one without words where it has none."""
    if checkpoint.tokenizer is None:
        return wordless_tokenizer(model.vocab, checkpoint.end_ids)
    return open_tokenizer(
        checkpoint.tokenizer, end_ids=checkpoint.end_ids, end_texts=checkpoint.end_texts
    )


def _template_source(asked: EngineConfig, checkpoint: Checkpoint) -> str | Mapping[str, str] | None:
    """Return the chat template that was requested, or the model's own."""
    if asked.chat_template is None:
        return checkpoint.chat_template
    try:
        return asked.chat_template.read_text(encoding="utf-8")
    except OSError as reason:
        raise ConfigError(f"{asked.chat_template} cannot be read: {reason.strerror}") from reason
    except UnicodeDecodeError as reason:
        raise ConfigError(f"{asked.chat_template} is not text in UTF-8: {reason}") from reason


def _sampling(checkpoint: Checkpoint) -> SamplingParams:
    """Return the sampling defaults of the model's makers, less those that cannot be sampled with.

    Warns once, with UnusableDefaults, of all that are left out.
    """
    usable, refused = {}, []
    for name, value in checkpoint.sampling_defaults.items():
        try:
            SamplingParams(**{name: value})
        except InvalidSampling as error:
            refused.append(str(error))
        else:
            usable[name] = value
    if refused:
        message = (
            f"{checkpoint.path}: generation_config.json: {'; '.join(refused)}; "
            "left out: requests that do not set it are sampled without"
        )
        warnings.warn(message, UnusableDefaults, stacklevel=2)
    return SamplingParams(**usable)
