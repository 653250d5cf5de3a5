"""Calls that a request constrains: the one place where they meet structured output."""

from __future__ import annotations

from dataclasses import replace

from spaninfer_engine import SamplingParams, StructuredOutput

from spaninfer_serving.chat.traits import ChatTraits
from spaninfer_serving.dialects.grammar import calls_grammar
from spaninfer_serving.dialects.parser import AnswerFormat
from spaninfer_serving.dialects.writing import WRITINGS
from spaninfer_serving.wire.chat import ChatRequest
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.tools import (
    AllowedNames,
    AllowedTools,
    CustomTool,
    NamedCustom,
    NamedFunction,
)


def constrains_calls(body: ChatRequest) -> bool:
    """Return whether a request does not leave it to the model what it calls, and how."""
    if body.tool_choice == "auto":
        return any(isinstance(tool, CustomTool) for tool in body.tools)
    return bool(body.tools) and body.tool_choice != "none"


def constraining_param(body: ChatRequest) -> str:
    """Return the parameter that constrains calls: a grammar of inputs, if there is only one."""
    places = [
        f"tools[{at}].custom.format.grammar.definition"
        for at, tool in enumerate(body.tools)
        if isinstance(tool, CustomTool) and tool.grammar is not None
    ]
    if len(places) == 1:
        return places[0]
    return "tools" if places or body.tool_choice == "auto" else "tool_choice"


def with_calls(
    body: ChatRequest, sampling: SamplingParams, traits: ChatTraits, form: AnswerFormat | None
) -> SamplingParams:
    """Return the sampling that holds the model to the calls that a request wants or allows."""
    if form is None or not constrains_calls(body):
        return sampling
    if sampling.structured is not None:
        raise _refused(
            "tool_choice or a custom tool constrains calls, and another parameter requires a form "
            "of the answer; send one of them",
            "tools" if body.tool_choice == "auto" else "tool_choice",
        )
    grammar = grammar_of_calls(body, traits, form)
    return replace(sampling, structured=StructuredOutput(grammar=grammar))


def grammar_of_calls(body: ChatRequest, traits: ChatTraits, form: AnswerFormat) -> str:
    """Return the grammar, in llguidance's form of Lark's syntax, of answers with the calls that
    have to be made, or that may be.

    Problem where the dialect cannot be written as one.
    """
    writing = WRITINGS.get(traits.dialect_name or "")
    if writing is None:
        raise _refused(
            f"tool_choice constrains calls, but calls of {traits.dialect_name} cannot be "
            "constrained; use 'auto' or 'none'",
            "tool_choice",
        )
    match body.tool_choice:
        case NamedFunction() | NamedCustom():
            return calls_grammar(writing, replace(form, is_single=True), traits.controls)
        case AllowedTools(allowed_tools=AllowedNames(mode="auto")) | "auto":
            return calls_grammar(writing, form, traits.controls, is_required=False)
    return calls_grammar(writing, form, traits.controls)


def _refused(message: str, param: str) -> Problem:
    return Problem(400, message, param=param, code="unsupported_parameter")
