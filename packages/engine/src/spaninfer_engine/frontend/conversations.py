"""Conversations as prompts: rendered by the model's template, with media where it has some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from spaninfer_engine.errors import InvalidMedia, InvalidPrompt, UnsupportedTask
from spaninfer_engine.frontend.contents import check_contents
from spaninfer_engine.preprocess.layout import MediaSetup
from spaninfer_engine.preprocess.parts import media_parts, without_sources
from spaninfer_engine.text.ids_only import NO_TEXT
from spaninfer_engine.text.template import ChatTemplate, Prompt
from spaninfer_engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from spaninfer_engine.preprocess.prepared import PreparedMedia
    from spaninfer_engine.preprocess.processor import MediaProcessor

TEMPLATES_OWN = frozenset({"thinking"})
"""Types of parts that only templates read, where they know them (Magistral's)."""


class Conversations:
    """Makes prompts of conversations, from any number of threads.

    `setup` is None for a model that reads text alone; `architecture` names it in messages.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        setup: MediaSetup | None,
        architecture: str,
    ) -> None:
        self._template, self._tokenizer, self._setup = template, tokenizer, setup
        self._architecture = architecture
        self._opening = Lock()
        self._processor: MediaProcessor | None = None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any] | None,
    ) -> Prompt:
        """Return the text of a conversation, a placeholder for each of its media.

        Raises InvalidPrompt for content of an unknown form, and TemplateError.
        """
        if self._tokenizer.is_wordless:
            raise InvalidPrompt(NO_TEXT)
        others = self._template.named(TEMPLATES_OWN, has_tools=bool(tools))
        check_contents(messages, others, takes_media=self._setup is not None)
        return self._template.render(
            without_sources(messages),
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
        )

    def prepare(self, messages: Sequence[Mapping[str, Any]], tenant: str) -> list[PreparedMedia]:
        """Return the media of a tenant's conversation as towers take them, in order; raises
        InvalidMedia.
        """
        parts = media_parts(messages)
        if not parts:
            return []
        if self._setup is None:
            raise InvalidMedia(
                parts[0].place,
                f"is of kind {parts[0].kind}; this model ({self._architecture}) reads text alone",
            )
        processor = self._open(self._setup)
        return [processor.prepare(part, tenant) for part in parts]

    def encode(self, rendered: Prompt, media: Sequence[PreparedMedia]) -> Sequence[int]:
        """Return the token ids of a rendered conversation, a MediaPrompt where it has media."""
        if media:
            assert self._setup is not None
            return self._open(self._setup).prompt(rendered, media)
        # The template writes its own beginning: a BOS of the tokenizer's would be a second one.
        return self._tokenizer.encode(
            rendered.text, add_special=False, parse_special=rendered.trusted
        )

    def processor(self) -> MediaProcessor | None:
        """Return what prepares media for the model; None where it reads text alone."""
        return None if self._setup is None else self._open(self._setup)

    def _open(self, setup: MediaSetup) -> MediaProcessor:
        with self._opening:
            if self._processor is None:
                self._processor = _processor(setup, self._tokenizer)
            return self._processor


def _processor(setup: MediaSetup, tokenizer: Tokenizer) -> MediaProcessor:
    try:
        from spaninfer_engine.preprocess.processor import open_processor
    except ImportError as missing:
        raise UnsupportedTask(
            "images, video and audio need the package spaninfer-multimodal: install the folder "
            f"multimodal of a checkout, pip install ./multimodal ({missing})"
        ) from missing
    return open_processor(setup, tokenizer)
