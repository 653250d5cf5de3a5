"""Options that several commands share, as one parameter of each.

Typer makes an option of every parameter of a function, by its name, annotation and default. What
commands share is a dataclass here, and a command that takes one is `spread` before Typer sees it:

    @app.command()
    @spread
    def info(model: options.Model = "demo", *, compute: options.Compute) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from inspect import Parameter, signature
from typing import Any, get_type_hints

Command = Callable[..., None]


def spread(command: Command) -> Command:
    """Return the command with the fields of its dataclasses in their places, one by one."""
    written = signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in written.parameters.items()
        if is_dataclass(parameter.annotation)
    }

    def flat(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    parameters = [
        each
        for name, parameter in written.parameters.items()
        for each in (_parameters_of(groups[name]) if name in groups else (parameter,))
    ]
    flat.__name__, flat.__doc__ = command.__name__, command.__doc__
    flat.__annotations__ = {each.name: each.annotation for each in parameters}
    flat.__signature__ = written.replace(parameters=parameters)  # type: ignore[attr-defined]
    return flat


def _parameters_of(group: Any) -> Iterator[Parameter]:
    """Yield a parameter per field of a dataclass; all of them have defaults."""
    kinds = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=kinds[field.name],
        )
