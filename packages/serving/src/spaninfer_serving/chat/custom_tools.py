"""Custom tools as the functions that models know: with one argument, a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spaninfer_engine.serving import shown

from spaninfer_serving.chat.traits import ChatTraits
from spaninfer_serving.dialects.custom_inputs import TextGrammar, input_schema
from spaninfer_serving.dialects.object_schemas import NO_ARGUMENTS, allows_objects
from spaninfer_serving.dialects.writing import WRITINGS
from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.tools import CustomTool, Tool


def grammar_of(tool: CustomTool) -> TextGrammar | None:
    """Return the grammar of a tool's input; None where that is any text."""
    found = tool.grammar
    return None if found is None else TextGrammar(found.syntax, found.definition)


def parameters_of(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments; a function that brings none takes none."""
    if isinstance(tool, CustomTool):
        return input_schema(grammar_of(tool))
    given = tool.function.parameters
    return NO_ARGUMENTS if given is None else given


def description_of(tool: Tool) -> str:
    """Return what the model is told about a tool, the grammar of its input included."""
    if not isinstance(tool, CustomTool):
        return tool.function.description or ""
    said = tool.custom.description or ""
    grammar = tool.grammar
    if grammar is None or grammar.syntax == "regex":  # which stands in the schema
        return said
    return f"{said}\n\nThe input follows this Lark grammar:\n{grammar.definition}".lstrip()


def check_parameters(tools: Sequence[Tool]) -> None:
    """Raise Problem for a function whose schema allows no object: no call of it is one."""
    for at, tool in enumerate(tools):
        if isinstance(tool, CustomTool) or allows_objects(parameters_of(tool)):
            continue
        place, kind = f"tools[{at}].function.parameters", parameters_of(tool).get("type")
        said = f"is of the type {shown(kind)}" if kind else "allows no JSON object"
        raise Problem(
            400,
            f"{place} {said}, and a function's arguments are a JSON object; use a schema of the "
            "type 'object' whose properties are the arguments, or leave it out for a function "
            "without arguments",
            param=place,
            code="invalid_function_parameters",
        )


def check_custom(tools: Sequence[Tool], traits: ChatTraits) -> None:
    """Raise Problem for a custom tool that cannot be offered with this model."""
    names = [tool.name for tool in tools]
    for at, tool in enumerate(tools):
        if not isinstance(tool, CustomTool):
            continue
        place = f"tools[{at}].custom"
        if names.count(tool.name) > 1:
            raise _refused(f"{place}.name is {tool.name!r}, the name of another tool", place)
        writing = WRITINGS.get(traits.dialect_name or "")
        if writing is None:
            raise _refused(
                f"{place}: inputs of custom tools are held to their form by the grammar of calls, "
                f"and there is none of the dialect {traits.dialect_name}; use a function",
                place,
            )
        is_lark = tool.grammar is not None and tool.grammar.syntax == "lark"
        if is_lark and not writing.text_argument:
            able = ", ".join(name for name, each in WRITINGS.items() if each.text_argument)
            raise _refused(
                f"{place}.format.grammar.syntax is 'lark', and calls of this model's dialect, "
                f"{traits.dialect_name}, hold the input as a string of JSON or Python; use "
                f"'regex', or a model of the dialects {able}",
                f"{place}.format.grammar.syntax",
            )


def _refused(message: str, param: str) -> Problem:
    return Problem(400, message, param=param, code="unsupported_parameter")
