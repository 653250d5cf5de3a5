"""Pairs of texts as prompts: cross-encoders that are decoders read them behind a chat template."""

from __future__ import annotations

from spaninfer_engine.errors import CheckpointError, InvalidPrompt, TemplateError
from spaninfer_engine.spec.pooling_nodes import PairPrompt
from spaninfer_engine.text.ids_only import NO_TEXT
from spaninfer_engine.text.template import ChatTemplate, Prompt
from spaninfer_engine.text.tokenizer import Tokenizer


class TemplatedPairs:
    """A tokenizer whose pairs are prompts of a chat template; texts alone are as they were."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, pairs: PairPrompt) -> None:
        self._tokenizer, self._template, self._pairs = tokenizer, template, pairs
        self.encode, self.truncate = tokenizer.encode, tokenizer.truncate

    def encode_pair(
        self, first: str, second: str, limit: int | None = None
    ) -> tuple[list[int], None]:
        """The ids of a query and a document; there are no token types.

        `limit`: of more tokens than that those in front of the template's ending are left out, by
        which the model knows that it is to answer. InvalidPrompt without a tokenizer,
        TemplateError where the template refuses the texts.
        """
        if self._tokenizer.is_wordless:
            raise InvalidPrompt(NO_TEXT)
        prompt = render(self._template, self._pairs, first, second)
        ids = self._ids(prompt)
        if limit is not None and len(ids) > limit:
            after = self._ids(_ending(prompt))[:limit]
            ids = [*ids[: limit - len(after)], *after]
        return ids, None

    def _ids(self, prompt: Prompt) -> list[int]:
        # The template writes its own beginning: a BOS of the tokenizer's would be a second one.
        return self._tokenizer.encode(prompt.text, add_special=False, parse_special=prompt.trusted)


def render(template: ChatTemplate, pairs: PairPrompt, query: str, document: str) -> Prompt:
    """Return the prompt of a pair."""
    return template.render_pair(
        query,
        document,
        instruction=pairs.instruction,
        add_generation_prompt=pairs.add_generation_prompt,
    )


def check_template(template: ChatTemplate, pairs: PairPrompt) -> None:
    """Raise CheckpointError for a chat template that does not render a query and a document."""
    try:
        plain, query, document = (
            render(template, pairs, *pair).text for pair in (("a", "b"), ("c", "b"), ("a", "d"))
        )
    except TemplateError as reason:
        raise CheckpointError(
            f"modules.json scores pairs by their logits, which takes a chat template: {reason}"
        ) from reason
    lost = [role for role, text in (("query", query), ("document", document)) if text == plain]
    if lost:
        raise CheckpointError(
            f"the chat template renders no message of the role {' and none of '.join(lost)}, which "
            "scores of pairs need; put the template of the reranker into chat_template.jinja"
        )


def _ending(prompt: Prompt) -> Prompt:
    """Return what the template wrote behind the last text that is not its own."""
    length = len(prompt.text)
    start, stop = prompt.trusted[-1] if prompt.trusted else (length, length)
    start = start if stop == length else length
    return Prompt(prompt.text[start:], ((0, length - start),) if start < length else ())
