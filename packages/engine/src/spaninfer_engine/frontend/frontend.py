"""The front of an engine: everything of a request that is no step, and needs no weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spaninfer_engine.config import Resolved
from spaninfer_engine.errors import UnsupportedTask
from spaninfer_engine.frontend.conversations import Conversations
from spaninfer_engine.frontend.encoder import EncoderFront
from spaninfer_engine.frontend.parts import FrontParts
from spaninfer_engine.request.prompts import Prompt
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.request.texts import Rows, Task, Text
from spaninfer_engine.text.template import ChatTemplate
from spaninfer_engine.text.template import Prompt as RenderedPrompt
from spaninfer_engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from spaninfer_engine.preprocess.prepared import PreparedMedia
    from spaninfer_engine.preprocess.processor import MediaProcessor

TASK_HINTS: Mapping[Task, str] = {
    "generate": "load a decoder to generate",
    "embed": "vectors of texts need an encoder such as a BERT, or a decoder beside whose weights "
    "modules.json says how it is pooled",
    "score": "scores need a cross-encoder with one label, or a model that embeds",
    "classify": "labels need a model for sequence classification",
}
"""What to load for each task."""


class Frontend:
    """Text to token ids and back, chat templates, media: with a model's files, without its weights.

    An engine is one; beside an engine of another process it stands alone.
    """

    def __init__(self, parts: FrontParts) -> None:
        self._front = parts
        self._conversations = Conversations(
            parts.template, parts.tokenizer, parts.media, parts.resolved.architecture
        )

    @property
    def resolved(self) -> Resolved:
        """Everything that was decided at the start."""
        return self._front.resolved

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._front.tokenizer

    @property
    def vocab_size(self) -> int:
        """The number of logits of a position, and so of entries of a mask; tokenizers may have
        fewer tokens.
        """
        return self._front.vocab

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template."""
        return self._front.template

    @property
    def default_sampling(self) -> SamplingParams:
        """The sampling parameters of requests without any."""
        return self._front.sampling

    @property
    def context(self) -> int:
        """The maximum number of tokens of prompt and answer together, or of a text to embed."""
        return self._front.context

    @property
    def tasks(self) -> frozenset[Task]:
        """The tasks that the model supports."""
        encoder = self._front.encoder
        return frozenset({"generate"}) if encoder is None else encoder.tasks

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        tenant: str = "",
    ) -> Sequence[int]:
        """Return the token ids of a conversation, rendered by the model's chat template.

        The content of a message is text or a list of parts such as {"type": "text", "text": ...};
        an assistant with tool calls may have none. Parts such as {"type": "image", "image": ...}
        are media, also of type video and audio: a path, bytes, an array, or an object of
        spaninfer_multimodal, with options such as max_pixels (docs/guides/vision.md). The result is
        then a MediaPrompt; `tenant` is as in `prepare_media`. `variables` are further variables of
        the template.

        Raises TemplateError if the template refuses the messages or the model has none,
        InvalidMedia for an unusable part, InvalidPrompt for content of another form, and if the
        model has no tokenizer.
        """
        prompt = self.render_chat(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, variables=variables
        )
        return self.encode_rendered(prompt, self.prepare_media(messages, tenant))

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """Return the text of that prompt, with its provenance; raises as `encode_chat`."""
        return self._conversations.render(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, variables=variables
        )

    def prepare_media(
        self, messages: Sequence[Mapping[str, Any]], tenant: str = ""
    ) -> list[PreparedMedia]:
        """Return the media of a conversation as inputs of the model's towers, in order.

        Media that the same tenant has sent before are not prepared again. Raises InvalidMedia for
        an unusable part, UnsupportedTask if spaninfer-multimodal is not installed.
        """
        return self._conversations.prepare(messages, tenant)

    def encode_rendered(
        self, prompt: RenderedPrompt, media: Sequence[PreparedMedia] = ()
    ) -> Sequence[int]:
        """Return the token ids of a rendered conversation with these media."""
        return self._conversations.encode(prompt, media)

    @property
    def takes_media(self) -> bool:
        """True if the model takes images, video or audio."""
        return self._front.media is not None

    @property
    def media_processor(self) -> MediaProcessor | None:
        """The media preprocessor of the model; None for text models."""
        return self._conversations.processor()

    # ---- texts whose steps somebody else forms (servers) -----------------------------------------

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of a classifier's labels; empty for other models."""
        encoder = self._front.encoder
        return () if encoder is None else encoder.labels

    @property
    def width(self) -> int:
        """Channels of the vectors of texts by default."""
        return self._encoder().encoder.width

    def encode_text(
        self,
        text: Prompt,
        *,
        number: int = 0,
        truncate: bool = False,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> Text:
        """Return a text as tokens, for `Engine.rows_of`; raises as `Engine.embed` does."""
        front = self._encoder()
        prefix = prompt if prompt_name is None else front.prompt_called(prompt_name)
        return front.text(text, number=number, truncate=truncate, prefix=prefix)

    def encode_pairs(
        self, queries: Sequence[str], documents: Sequence[str], *, truncate: bool = False
    ) -> list[Text]:
        """Return what `Engine.rows_of` is given for the scores of pairs, which `scores_of` reads.

        Of a cross-encoder a text per pair; of others the documents, then the different queries
        in the order of their first pairs, and one for each pair again where they are not one.
        """
        return self._for("score").pairs(queries, documents, truncate=truncate)

    def vectors_of(
        self, rows: Rows, *, normalize: bool | None = None, dimensions: int | None = None
    ) -> Rows:
        """Return rows as `Engine.embed` returns them; InvalidSampling for other `dimensions`."""
        return self._for("embed").vectors(rows, normalize=normalize, dimensions=dimensions)

    def probabilities_of(self, rows: Rows) -> Rows:
        """Return rows as `Engine.classify` returns them."""
        return self._for("classify").probabilities(rows)

    def scores_of(self, rows: Rows, num_documents: int) -> Rows:
        """Return the scores [N] of the rows of `encode_pairs`."""
        return self._for("score").scores(rows, num_documents)

    def _for(self, task: Task) -> EncoderFront:
        """Return the front of texts; UnsupportedTask where the model is not for the task."""
        if task in self.tasks:
            return self._encoder()
        able = ", ".join(sorted(self.tasks))
        raise UnsupportedTask(
            f"this model ({self.resolved.architecture}) does not {task}; {TASK_HINTS[task]}"
            f"; what it is for: {able}"
        )

    def _encoder(self) -> EncoderFront:
        if self._front.encoder is None:
            raise self._generates()
        return self._front.encoder

    def _generates(self) -> UnsupportedTask:
        """Return the refusal of texts to embed or rank."""
        return UnsupportedTask(
            f"this model is a decoder, which generates (Engine.generate); {TASK_HINTS['embed']}"
        )
