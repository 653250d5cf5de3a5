"""The front of an encoder: texts to token ids, rows to vectors, labels and scores; no weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spaninfer_engine.errors import InvalidPrompt, TextTooLong, shown
from spaninfer_engine.request.prompts import Prompt, check_prompt, token_ids
from spaninfer_engine.request.request import TokenIds
from spaninfer_engine.request.texts import Rows, Task, Text, probabilities_of, vectors_of
from spaninfer_engine.schedule.admission import check_token_ids
from spaninfer_engine.spec.nodes import Encoder
from spaninfer_engine.text.template import ChatTemplate
from spaninfer_engine.text.templated_pairs import TemplatedPairs
from spaninfer_engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EncoderFront:
    """An encoder as callers see it; `context` is the most tokens that a text can have."""

    encoder: Encoder
    tokenizer: Tokenizer | TemplatedPairs
    context: int

    @classmethod
    def new(
        cls, encoder: Encoder, tokenizer: Tokenizer, template: ChatTemplate, context: int
    ) -> EncoderFront:
        """Return the front of an encoder whose files hold this tokenizer and template."""
        pairs = encoder.text.pairs
        texts = tokenizer if pairs is None else TemplatedPairs(tokenizer, template, pairs)
        return cls(encoder, texts, context)

    @property
    def tasks(self) -> frozenset[Task]:
        """The supported tasks: vectors and their similarity, or a classifier's labels."""
        labels = self.encoder.labels
        if labels is None:
            return frozenset({"embed", "score"})
        if self.encoder.text.pairs is not None:
            return frozenset({"score"})
        return frozenset({"classify", "score"} if len(labels.names) == 1 else {"classify"})

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of a classifier's labels; empty for other models."""
        labels = self.encoder.labels
        return () if labels is None or "classify" not in self.tasks else labels.names

    def text(
        self, prompt: Prompt, *, number: int = 0, truncate: bool = False, prefix: str | None = None
    ) -> Text:
        """Return the token ids of a text, checked; `number` is its own in messages.

        `prefix` is put in front of a text; None: what the model's files mean. Raises TextTooLong,
        InvalidPrompt.
        """
        check_prompt(prompt)
        if isinstance(prompt, str):
            prefix = self._default_prompt if prefix is None else prefix
            ids: Sequence[int] = self.tokenizer.encode(self._cased(prefix + prompt))
        elif prefix:
            raise InvalidPrompt("a prompt is put in front of texts, and this one is token ids")
        else:
            ids = prompt
        if truncate:
            ids = self.tokenizer.truncate(ids, self.context)
        return Text(self._checked(ids, number))

    def pairs(
        self, queries: Sequence[str], documents: Sequence[str], *, truncate: bool = False
    ) -> list[Text]:
        """Return the texts of pairs, as `Frontend.encode_pairs` does."""
        if self.encoder.labels is not None:
            pairs = zip(queries, documents, strict=True)
            return [
                self._pair(*pair, number=number, truncate=truncate)
                for number, pair in enumerate(pairs)
            ]
        asked = [*documents, *(queries[:1] if len(set(queries)) == 1 else queries)]
        return [
            self.text(each, number=number, truncate=truncate) for number, each in enumerate(asked)
        ]

    def _pair(self, first: str, second: str, *, number: int, truncate: bool) -> Text:
        """Return the token ids of a pair of texts, as `text` does."""
        limit = self.context if truncate else None
        ids, second_from = self.tokenizer.encode_pair(
            self._cased(first), self._cased(second), limit
        )
        types = self.encoder.embedding.types
        has_types = types is not None and types.shape[0] > 1  # XLM-R has one for all tokens
        return Text(self._checked(ids, number), second_from if has_types else None)

    def prompt_called(self, name: str) -> str:
        """Return the prompt of the model's files with this name; InvalidPrompt without it."""
        prompts = dict(self.encoder.text.prompts)
        if name not in prompts:
            known = ", ".join(map(repr, prompts)) or "none"
            raise InvalidPrompt(
                f"prompt_name is {shown(name)}; this model's prompts are {known}: name one of "
                "them, or write the prompt into the texts"
            )
        return prompts[name]

    def vectors(self, rows: Rows, *, normalize: bool | None, dimensions: int | None) -> Rows:
        """Return rows as vectors; normalize None: as the model's files want them."""
        unasked = self.encoder.pool.normalise
        normalise = unasked if normalize is None else normalize
        return vectors_of(rows, normalise=normalise, dimensions=dimensions)

    def probabilities(self, rows: Rows) -> Rows:
        """Return rows as the probabilities of labels."""
        labels = self.encoder.labels
        assert labels is not None, "it classifies"
        return probabilities_of(rows, labels.activation)

    def scores(self, rows: Rows, num_documents: int) -> Rows:
        """Return the scores [N] of the rows of `pairs`."""
        if self.encoder.labels is not None:
            return self.probabilities(rows)[:, 0]
        unit = vectors_of(rows, normalise=True)
        cosines: Rows = (unit[:num_documents] * unit[num_documents:]).sum(1)
        return cosines

    @property
    def _default_prompt(self) -> str:
        name = self.encoder.text.default_prompt
        return "" if name is None else self.prompt_called(name)

    def _cased(self, text: str) -> str:
        return text.lower() if self.encoder.text.lower_case else text

    def _checked(self, ids: Sequence[int], number: int) -> TokenIds:
        if len(ids) > self.context:
            raise TextTooLong(number, len(ids), self.context)
        checked = token_ids(ids)
        if (problem := check_token_ids(checked, self.encoder.vocab)) is not None:
            raise problem
        return checked
