"""Installation instructions: none names our packages on an index that does not have them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = sorted(
    tomllib.loads(toml.read_text(encoding="utf-8"))["project"]["name"]
    for toml in [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("packages/*/pyproject.toml")]
)
# A name of ours behind "install", with what stands between: options, quotes, other names.
FROM_AN_INDEX = re.compile(
    rf"""\binstall(?:\s+[-\w.'"\[\],=~<>]+)*?\s+['"`]?(?:{"|".join(OURS)})(?=[\s'"`\[]|$)"""
)

SPLIT = re.compile(r'"\n\s*f?"')  # a sentence of a program goes on in the next line


def texts() -> list[Path]:
    """What users read: pages, READMEs, and sources with their messages."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("Dockerfile")]
    for home in ("", "packages/"):
        found += ROOT.glob(f"{home}*/README.md")
        found += ROOT.glob(f"{home}*/src/**/*.py")
    return sorted(path for path in set(found) if "decisions" not in path.parts)


def test_there_are_names_and_texts() -> None:
    assert len(OURS) == 10
    assert len(texts()) > 400


@pytest.mark.parametrize(
    "told",
    ["pip install spaninfer", "pip install 'spaninfer[cuda]'", "install -U span-attention[cu13]"],
)
def test_a_name_without_a_folder_is_recognised(told: str) -> None:
    assert FROM_AN_INDEX.search(told)
    assert not FROM_AN_INDEX.search(told.replace("span", "./packages/span", 1))


def test_no_text_names_a_package_of_ours_for_pip_to_look_up() -> None:
    told = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in texts()
        for line in SPLIT.sub("", path.read_text(encoding="utf-8")).splitlines()
        if (found := FROM_AN_INDEX.search(line))
    ]

    assert told == []
