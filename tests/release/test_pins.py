"""Pinned versions: constraints.txt, with which the pre-commit hooks agree."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECTS = [
    tomllib.loads(path.read_text(encoding="utf-8"))
    for pattern in ("pyproject.toml", "*/pyproject.toml", "packages/*/pyproject.toml")
    for path in sorted(ROOT.glob(pattern))
]
OURS = {described["project"]["name"] for described in PROJECTS if "project" in described}


def pins(text: str) -> dict[str, str]:
    """The versions that `name==version` states in a text."""
    return dict(re.findall(r"([\w.-]+)==([\w.]+)", text))


def asked_for(described: dict[str, Any]) -> Iterator[str]:
    """The names of everything that a pyproject.toml asks for, for whatever purpose."""
    project = described.get("project", {})
    lines = [
        *described.get("build-system", {}).get("requires", []),
        *project.get("dependencies", []),
        *(line for extra in project.get("optional-dependencies", {}).values() for line in extra),
        *(line for group in described.get("dependency-groups", {}).values() for line in group),
    ]
    for line in lines:
        yield canonicalize_name(Requirement(line).name)


def test_the_hooks_run_the_pinned_versions() -> None:
    pinned = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    hooks = pins((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))

    assert hooks
    assert {name: pinned.get(name) for name in hooks} == hooks


def test_torch_and_every_other_pin_is_one_exact_version() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    stated = [line for line in lines if line and not line.startswith("#")]

    assert "torch==2.13.0" in stated
    assert [line for line in stated if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


def test_everything_that_a_package_asks_for_is_pinned() -> None:
    pinned = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))

    wanted = {name for described in PROJECTS for name in asked_for(described)}

    assert wanted - OURS - pinned.keys() == set()
