"""Options that several commands share, as one parameter of each.

Typer makes an option of every parameter of a function, by its name, annotation and default. What
commands share is a dataclass (`option_groups`), whose fields may be groups in turn, and a command
that takes one is `spread` before Typer sees it:

    @app.command()
    @spread
    def info(model: options.Model = "demo", *, deployment: Deployment) -> None: ...
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
        made = {name: _made(group, given) for name, group in groups.items()}
        command(**given, **made)

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
    """Yield a parameter per option of a group and of the groups in it; all have defaults."""
    kinds = get_type_hints(group, include_extras=True)
    for field in fields(group):
        kind = kinds[field.name]
        if is_dataclass(kind):
            yield from _parameters_of(kind)
        else:
            yield Parameter(
                field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=kind
            )


def _made(group: Any, given: dict[str, Any]) -> Any:
    """Return a group of its options' values, which are taken out of `given`."""
    kinds = get_type_hints(group)
    values = {
        field.name: _made(kinds[field.name], given)
        if is_dataclass(kinds[field.name])
        else given.pop(field.name)
        for field in fields(group)
    }
    return group(**values)
