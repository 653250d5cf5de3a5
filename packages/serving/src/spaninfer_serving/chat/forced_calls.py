"""Calls that a request insists on: the one place where they meet structured output."""

from __future__ import annotations

from dataclasses import replace

from spaninfer_engine import SamplingParams, StructuredOutput

from spaninfer_serving.chat.traits import ChatTraits
from spaninfer_serving.dialects.grammar import calls_grammar
from spaninfer_serving.dialects.parser import AnswerFormat
from spaninfer_serving.dialects.writing import WRITINGS
from spaninfer_serving.wire.chat import ChatRequest
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.tools import NamedTool


def insists(body: ChatRequest) -> bool:
    """Return whether a request asks for a call whatever the model wants."""
    return bool(body.tools) and body.tool_choice not in ("none", "auto")


def forced(
    body: ChatRequest, sampling: SamplingParams, traits: ChatTraits, form: AnswerFormat | None
) -> SamplingParams:
    """Return the sampling that holds the model to the calls a request insists on."""
    if form is None or not insists(body):
        return sampling
    if sampling.structured is not None:
        raise _refused(
            "tool_choice requires a call, and another parameter requires a form of the "
            "answer; send one of them"
        )
    grammar = required_grammar(body, traits, form)
    return replace(sampling, structured=StructuredOutput(grammar=grammar))


def required_grammar(body: ChatRequest, traits: ChatTraits, form: AnswerFormat) -> str:
    """Return the grammar, in llguidance's form of Lark's syntax, of the calls that have to be made.

    Problem where the dialect cannot be written as one.
    """
    writing = WRITINGS.get(traits.dialect_name or "")
    if writing is None:
        raise _refused(
            f"tool_choice requires a call, but calls of {traits.dialect_name} cannot be "
            "forced; use 'auto' or 'none'"
        )
    tools, is_single = form.tools, form.is_single
    if isinstance(body.tool_choice, NamedTool):
        name = body.tool_choice.function.name
        tools, is_single = {name: form.tools[name]}, True
    return calls_grammar(
        writing,
        tools,
        traits.controls,
        is_single=is_single,
        thinking=form.thinking,
        is_thinking=form.is_thinking,
    )


def _refused(message: str) -> Problem:
    return Problem(400, message, param="tool_choice", code="unsupported_parameter")
