"""The operator table and its implementations: every operator, with the same arguments."""

from __future__ import annotations

import inspect

import pytest
from backends import BACKENDS, Backend
from spaninfer_engine.ops.table import Ops, reads_step

MEMBERS = [name for name, _ in inspect.getmembers(Ops, inspect.isfunction)]
OPERATORS = [name for name in MEMBERS if not name.startswith("_")]


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_backend_takes_the_arguments_of_the_table(name: str, backend: Backend) -> None:
    theirs = inspect.signature(getattr(backend.make(), name)).parameters.values()
    ours = list(inspect.signature(getattr(Ops, name)).parameters.values())[1:]

    if any(each.kind is each.VAR_KEYWORD for each in theirs) and all(
        each.kind is not each.VAR_KEYWORD for each in ours
    ):
        ours = [parameter for parameter in ours if parameter.kind is not parameter.KEYWORD_ONLY]
        theirs = [parameter for parameter in theirs if parameter.kind not in (3, 4)]
    assert [(p.name, p.kind) for p in theirs] == [(p.name, p.kind) for p in ours]


def test_operators_that_read_the_step_say_so_in_their_signature() -> None:
    assert reads_step("attend")
    assert not reads_step("linear")
