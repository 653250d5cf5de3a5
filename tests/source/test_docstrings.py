"""Docstrings of modules, which begin with a definition, not with a relative clause."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLAUSE = re.compile(r"(?:What|Where|How|Which|Whether|When|Who|Whose|Why|That|If)\b")


def test_no_module_opens_with_a_relative_clause() -> None:
    sources = [path.relative_to(ROOT) for path in ROOT.glob("[!.]*/**/*.py")]
    docstrings = {
        path.as_posix(): ast.get_docstring(ast.parse((ROOT / path).read_text("utf-8")))
        for path in [*sources, Path("conftest.py"), Path("noxfile.py")]
        if "build" not in path.parts
    }

    assert len(docstrings) > 1000
    assert [path for path, text in docstrings.items() if text and CLAUSE.match(text)] == []
