"""Docstrings of modules begin with a definition, not with a relative clause."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLAUSE = re.compile(r"(?:What|Where|How|Which|Whether|When|Who|Why|That)\b")


def test_no_module_of_a_package_opens_with_a_relative_clause() -> None:
    opened = {
        path.relative_to(ROOT).as_posix(): ast.get_docstring(ast.parse(path.read_text("utf-8")))
        for pattern in ("*/src", "packages/*/src")
        for source in ROOT.glob(pattern)
        for path in source.rglob("*.py")
    }

    assert len(opened) > 500
    assert [path for path, text in opened.items() if text and CLAUSE.match(text)] == []
