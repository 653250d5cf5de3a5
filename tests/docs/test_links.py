"""Links between files of the repository: all targets exist; those of docs/ stay inside."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for pattern in ("*.md", "*/README.md", "packages/*/README.md")
    for page in sorted(ROOT.glob(pattern))
]
DOCS = sorted((ROOT / "docs").rglob("*.md"))


def place(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def links_of(page: Path) -> list[str]:
    """The links of a page to other files."""
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    return [target for target in targets if ":" not in target]


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    plain = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", [*PAGES, *DOCS], ids=place)
def test_links_to_headings_lead_to_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    broken = [
        (file, anchor)
        for file, anchor in links
        if (target := page.parent / file if file else page).suffix == ".md"
        and anchor not in anchors_of(target)
    ]

    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_relative_links_lead_to_files(page: Path) -> None:
    assert [link for link in links_of(page) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", DOCS, ids=place)
def test_a_page_of_the_site_links_to_files_of_the_site(page: Path) -> None:
    outside = [
        link
        for link in links_of(page)
        if not (target := (page.parent / link).resolve()).is_relative_to(ROOT / "docs")
        or not target.exists()
    ]

    assert outside == []


@pytest.mark.parametrize("page", [*PAGES, *DOCS], ids=place)
def test_records_that_a_page_names_are_there(page: Path) -> None:
    named = re.findall(r"benchmarks/records/([\w.-]*\w)", page.read_text(encoding="utf-8"))

    assert [name for name in named if not (ROOT / "benchmarks/records" / name).exists()] == []
