"""Calls as a name and an object in a notation of its own: call:N{k:<|"|>v<|"|>}."""

from __future__ import annotations

from dataclasses import dataclass

from spaninfer_serving.dialects.answer import Answer
from spaninfer_serving.dialects.literals import Literals
from spaninfer_serving.dialects.reader import Wait, marks_of


@dataclass(frozen=True, slots=True)
class ObjectCalls:
    """Reads a name up to a brace, and an object in this notation."""

    opens: tuple[str, ...]
    literals: Literals
    close: str

    def read(self, answer: Answer, _: str) -> Wait[None]:
        """Read what follows an opening mark."""
        reader = answer.reader
        name, brace = yield from reader.name(marks_of("{"))
        reader.back(brace)
        answer.start(name)
        yield from self.literals.read(reader, answer.argue)
        answer.finish()
        yield from reader.space()
        yield from reader.skip_last(self.close)
