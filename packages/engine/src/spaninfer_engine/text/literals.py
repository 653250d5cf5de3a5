"""Compiled templates whose literals know that the template wrote them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from markupsafe import Markup

from spaninfer_engine.text.provenance import TrustedText


class Literals(dict[str, str]):
    """The literals of templates by their text; compiled code looks them up where they stand."""

    def __missing__(self, text: str) -> str:
        self[text] = TrustedText(text) if text else text
        return self[text]


class LiteralGenerator(CodeGenerator):
    """Writes `environment.literals['…']` for every text of the template, also within lists."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802
        """A constant of an expression, or what the optimiser made of several."""
        self.write(_source(node.as_const(frame.eval_ctx)))

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:  # noqa: N802
        """Text outside of tags that is written at run time."""
        self.write(_source(node.as_const(frame.eval_ctx)))

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        """Text outside of tags, and constants beside it."""
        return _source("".join(group))


def _source(value: Any) -> str:
    """The Python expression of a constant."""
    match value:
        case Markup():
            return f"environment.filters['safe']({_source(str(value))})"
        case str():
            return f"environment.literals[{str.__repr__(value)}]"
        case tuple():
            return "({})".format("".join(f"{_source(each)}, " for each in value))
        case list():
            return "[{}]".format("".join(f"{_source(each)}, " for each in value))
        case dict():
            items = (f"{_source(key)}: {_source(each)}" for key, each in value.items())
            return f"{{{', '.join(items)}}}"
        case float():
            return str(value)
    return repr(value)
