"""Calls as a list of Python calls: [f(a=1), g()]."""

from __future__ import annotations

import json
from dataclasses import dataclass

from spaninfer_serving.dialects.answer import Answer
from spaninfer_serving.dialects.literals import Literals, read_comma, read_name
from spaninfer_serving.dialects.reader import Malformed, Wait

PYTHON = Literals()


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """Reads a list of calls with named arguments; positional ones are malformed.

    `opens` are marks in front; with `is_known_only`, for calls without a mark, only the functions
    that the request brings are called. Within a mark, the brackets may be missing.
    """

    opens: tuple[str, ...]
    close: str = ""
    is_known_only: bool = False

    def read(self, answer: Answer, _: str) -> Wait[None]:
        """Read what follows an opening mark."""
        reader = answer.reader
        yield from reader.space()
        end = "]" if (yield from reader.skip("[")) else self.close
        if not end:
            raise Malformed("expected a list")
        while True:
            yield from reader.space()
            yield from self._read_call(answer)
            yield from reader.space()
            if reader.is_drained:
                return
            if not (yield from reader.skip(",")):
                break
        yield from reader.expect(end)
        yield from reader.space()
        yield from reader.skip_last(self.close if end == "]" else "")

    def _read_call(self, answer: Answer) -> Wait[None]:
        reader = answer.reader
        name = yield from read_name(reader)
        yield from reader.expect("(")
        if self.is_known_only and name not in answer.tools:
            raise Malformed("no function of this request is named")
        answer.start(name)
        comma = "{"
        yield from reader.space()
        while not (yield from reader.skip(")")):
            key = yield from read_name(reader)
            yield from reader.space()
            yield from reader.expect("=")
            yield from reader.space()
            answer.argue(f"{comma}{json.dumps(key, ensure_ascii=False)}: ")
            yield from PYTHON.read(reader, answer.argue)
            comma = ", "
            yield from read_comma(reader, ")")
        answer.argue("{}" if comma == "{" else "}")
        answer.finish()
