"""Programs shown in the documentation: all of them run, as their page shows them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hearing_folder import save_hearing_folder

HEARING = "Qwen2-Audio-7B-Instruct"
"""A downloaded model, in whose place stands a small one with random weights."""
ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def python_blocks(page: Path, needs: str = "") -> list[str]:
    """The text of every block that a page marks as Python; with `needs`, as "python gpu"."""
    text = page.read_text(encoding="utf-8")
    mark = f"python {needs}" if needs else "python"
    return re.findall(rf"^```{mark}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def named_blocks(page: Path) -> list[tuple[str, str]]:
    """The name and the text of every block that a page shows as a file."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r'^```\w+ title="(.+?)"\n(.*?)^```', text, flags=re.DOTALL | re.MULTILINE)


PROGRAMS = [
    pytest.param(page, program, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, program in enumerate(python_blocks(page), 1)
]


def readmes_with(needs: str = "") -> list[Path]:
    return [
        page
        for pattern in ("*.md", "*/README.md", "packages/*/README.md")
        for page in sorted(ROOT.glob(pattern))
        if python_blocks(page, needs)
    ]


READMES = readmes_with()
ON_GPU = [*readmes_with("gpu"), *(page for page in PAGES if python_blocks(page, "gpu"))]


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


@pytest.mark.parametrize(("page", "program"), PROGRAMS)
def test_a_program_of_a_page_runs(
    page: Path, program: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each by itself, beside the files that its page shows under their names."""
    for name, text in named_blocks(page):
        (tmp_path / name).write_text(text, encoding="utf-8")
    if f'"{HEARING}"' in program:
        save_hearing_folder(tmp_path / HEARING)
    variables = {}
    if "OPENAI_BASE_URL" in program:
        variables["OPENAI_BASE_URL"] = f"{request.getfixturevalue('server').url}/v1"

    run(tmp_path, "-c", program, **variables)


@pytest.mark.parametrize("page", READMES, ids=place)
def test_what_a_readme_shows_runs_from_its_first_line_to_its_last(
    page: Path, tmp_path: Path
) -> None:
    run(tmp_path, "-c", "".join(python_blocks(page)))


@pytest.mark.parametrize("page", [*PAGES, *READMES], ids=place)
def test_a_page_can_be_read_where_it_lies(page: Path) -> None:
    """Text that another program would put in is not there for readers of the repository."""
    assert "--8<--" not in page.read_text(encoding="utf-8")


@pytest.mark.gpu
@pytest.mark.parametrize("page", ON_GPU, ids=place)
def test_what_a_page_shows_on_a_gpu_runs_there(page: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")

    run(tmp_path, "-c", "".join(python_blocks(page, "gpu")))


@pytest.mark.parametrize("page", ON_GPU, ids=place)
def test_what_a_page_shows_on_a_gpu_is_python(page: Path) -> None:
    compile("".join(python_blocks(page, "gpu")), str(page), "exec")
