"""Prompts that ask a model to fill in the middle, as token ids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from spaninfer_engine.serving import Tokenizer

from spaninfer_serving.fill_in_middle.table import FIM_MARKS, FimMarks


@dataclass(frozen=True, slots=True)
class FimPrompts:
    """The prompts of a model whose vocabulary has the marks.

    What users write never becomes a mark: where their text spells one, it is cut in two before it
    is tokenised, even if the vocabulary calls the mark a text like any other (as Qwen2.5's does).
    """

    tokenizer: Tokenizer
    marks: FimMarks
    ids: dict[str, int]  # of marks and ends that the vocabulary has
    spelled: re.Pattern[str]  # any of them, in a text

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> FimPrompts | None:
        """Return the prompts for a vocabulary; None where it has none of the marks."""
        for marks in FIM_MARKS.values():
            found = {text: tokenizer.find_id(text) for text in (*marks.needed, *marks.ends)}
            ids = {text: token_id for text, token_id in found.items() if token_id is not None}
            if ids.keys() >= set(marks.needed):
                return cls(tokenizer, marks, ids, _spelled(ids))
        return None

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end what is filled in, beside the model's own."""
        return tuple(self.ids[text] for text in self.marks.ends if text in self.ids)

    def encode(self, prefix: str, suffix: str, *, add_special: bool) -> list[int]:
        """Return the prompt that asks for what is between two texts.

        A vocabulary that puts a space before a text does so before the prefix alone: the suffix
        goes on from what is asked for.
        """
        ids: list[int] = []
        for part in self.marks.order:
            if part == "prefix":
                first, *rest = self._letters(prefix)
                ids += self.tokenizer.encode(first, add_special=False)
                ids += self._inside(rest)
            elif part == "suffix":
                ids += self._inside(self._letters(suffix))
            else:
                ids.append(self.ids[part])
        return self.tokenizer.framed(ids) if add_special else ids

    def _inside(self, texts: list[str]) -> list[int]:
        return [token_id for text in texts for token_id in self.tokenizer.encode_inside(text)]

    def _letters(self, text: str) -> list[str]:
        """Return the parts of a text, none of which spells a mark."""
        return list(_between(text, [hit.start() + 2 for hit in self.spelled.finditer(text)]))


def _spelled(ids: dict[str, int]) -> re.Pattern[str]:
    """Return what finds a mark in a text; of a space in front of one, nothing is left there."""
    cores = {text.removeprefix("▁") for text in ids}
    return re.compile("|".join(map(re.escape, cores | {core.replace("▁", " ") for core in cores})))


def _between(text: str, cuts: list[int]) -> Iterator[str]:
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        yield text[start:stop]
