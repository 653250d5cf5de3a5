"""The navigation of the site, which has every page once: mkdocs says so only when it builds."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_navigation_names_every_page_once():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = re.findall(r"^ *- (?:[^:\n]*: )?([\w/.-]+\.md)$", nav, re.MULTILINE)
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]

    assert sorted(named) == sorted(pages)
