from pathlib import Path

import pytest
from spaninfer_engine.spec.document import document
from spaninfer_engine.spec.vocabulary import SECTIONS

PAGE = Path(__file__).parents[4] / "docs" / "spec-language.md"


def test_the_page_names_every_section_and_key() -> None:
    text = document()

    for name, section in SECTIONS.items():
        assert f"## [{name}]" in text
        assert all(f"| `{key}` |" in text for key in section.keys)


def test_every_row_of_a_table_has_as_many_cells_as_its_head() -> None:
    width = 0

    for line in document().splitlines():
        cells = line.replace("\\|", "").count("|")
        width = width or cells
        assert not line.startswith("|") or cells == width, line
        width = width if line.startswith("|") else 0


def test_the_page_in_the_repository_is_current() -> None:
    if not PAGE.exists():
        pytest.skip("the docs folder lies beside the packages of a checkout only")

    assert PAGE.read_text() == document(), (
        "python -m spaninfer_engine.spec.document > docs/spec-language.md"
    )
