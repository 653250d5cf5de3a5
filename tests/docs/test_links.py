"""Links between files of the repository lead somewhere (mkdocs checks those inside docs/)."""

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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))

    lost = [
        target for target in targets if ":" not in target and not (page.parent / target).exists()
    ]

    assert lost == []
