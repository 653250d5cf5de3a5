"""Version ranges of sibling packages, which are published one by one."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECTS: dict[str, dict[str, Any]] = {
    described["project"]["name"]: described["project"]
    for pattern in ("*/pyproject.toml", "packages/*/pyproject.toml")
    for path in sorted(ROOT.glob(pattern))
    if "project" in (described := tomllib.loads(path.read_text(encoding="utf-8")))
}


def asked_of_siblings() -> Iterator[tuple[str, Requirement]]:
    """Each package, with each thing that it asks of another one for its users."""
    for name, project in PROJECTS.items():
        extras = project.get("optional-dependencies", {}).values()
        for line in (*project["dependencies"], *(line for extra in extras for line in extra)):
            wanted = Requirement(line)
            if wanted.name in PROJECTS.keys() - {name}:
                yield name, wanted


def test_packages_stand_on_each_other() -> None:
    assert len(list(asked_of_siblings())) >= 10


@pytest.mark.parametrize(("name", "wanted"), list(asked_of_siblings()), ids=str)
def test_a_sibling_is_wanted_in_the_series_of_the_tree_and_in_no_later_one(
    name: str, wanted: Requirement
) -> None:
    here = Version(PROJECTS[wanted.name]["version"])
    next_series = f"{here.major}.{here.minor + 1}.0" if here.major == 0 else f"{here.major + 1}.0"

    assert wanted.specifier.contains(str(here)), f"{name} wants {wanted}, here is {here}"
    assert not wanted.specifier.contains(next_series), f"{name} wants {wanted}: any later one too"
