"""Tests named in documentation: they exist, under that name."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if "::test_" in page.read_text(encoding="utf-8")
]
NAMED = re.compile(r"`([\w./-]+/test_\w+\.py)(?:::(test_\w+))?`")


@cache
def names_in(path: str) -> frozenset[str]:
    """The names of the tests in a file; none where there is no such file."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(each.name for each in functions if each.name.startswith("test_"))


def missing(text: str) -> list[str]:
    """The tests and files of tests that a text names and that are not there."""
    return [
        found[0]
        for found in NAMED.finditer(text)
        if not names_in(found[1]) or not (found[2] is None or found[2] in names_in(found[1]))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert len(NAMED.findall(text)) > 40
    assert missing(text) == []


def test_a_test_that_was_renamed_and_a_file_that_was_moved_are_missed() -> None:
    here = Path(__file__).relative_to(ROOT).as_posix()

    assert missing(f"`{here}::test_every_test_that_a_page_names_is_there`, `{here}`") == []
    assert len(missing(f"`{here}::test_what_was`, `tests/elsewhere/test_named_tests.py`")) == 2
