"""Every program that the documentation shows runs: the examples, and what the READMEs hold."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def python_blocks(page: Path) -> list[str]:
    """The text of every block that a page marks as Python."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


READMES = [
    page
    for pattern in ("*.md", "*/README.md", "packages/*/README.md")
    for page in sorted(ROOT.glob(pattern))
    if python_blocks(page)
]


def place(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def run(folder: Path, *program: str | Path, **variables: str) -> None:
    """Run a program as a user would: in a folder of its own, without arguments."""
    done = subprocess.run(
        [sys.executable, *program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,  # a busy machine compiles kernels for a minute
        env=os.environ | variables,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=place)
def test_an_example_runs(example: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    variables = {}
    if "OPENAI_BASE_URL" in example.read_text(encoding="utf-8"):
        variables["OPENAI_BASE_URL"] = f"{request.getfixturevalue('server').url}/v1"

    run(tmp_path, example, **variables)


@pytest.mark.parametrize("page", READMES, ids=place)
def test_what_a_readme_shows_runs_from_its_first_line_to_its_last(
    page: Path, tmp_path: Path
) -> None:
    run(tmp_path, "-c", "".join(python_blocks(page)))


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_a_page_includes_its_programs_from_the_examples(page: Path) -> None:
    strangers = [block for block in python_blocks(page) if not block.startswith('--8<-- "')]

    assert strangers == []
