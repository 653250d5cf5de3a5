"""Files, folders and dotted names mentioned in documentation: all of them exist."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(
    path.parent
    for pattern in ("*", "packages/*")
    for path in ROOT.glob(f"{pattern}/pyproject.toml")
)
PAGES = [
    ROOT / name
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "docs/architecture.md",
        "docs/extending.md",
        "docs/security.md",
        "docs/guides/add-a-model.md",
        "packages/engine/README.md",
        "packages/serving/README.md",
    )
]
FILE = re.compile(r"(?<![\w*<>{}./\\-])[\w./-]*\w\.(?:py|cuh?|toml)\b(?!\w)")
FOLDER = re.compile(r"`((?:[\w-]+/)+)`")
DOTTED = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`")
BUILT = {"dist/", "site/"}
SHOWN = re.compile(r'title="(.+?)"')  # files that a page shows whole, for its reader to write


def place(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def tree() -> tuple[str, ...]:
    """Every file and folder of the sources, the pages and the tests, from the root, as /path."""
    tops = {*PACKAGES, ROOT / "docs", ROOT / "tests", ROOT / "benchmarks"}
    found = [path for top in tops for path in (top, *top.rglob("*")) if path.suffix != ".pyc"]
    found += ROOT.glob("*.*")
    return tuple(f"/{path.relative_to(ROOT).as_posix()}" for path in found)


def is_there(path: str) -> bool:
    """Does a path of the tree end like this? Pages name files from the root or from a package."""
    return any(each.endswith(f"/{path.rstrip('/')}") for each in tree())


@cache
def members() -> dict[str, frozenset[str]]:
    """Names inside of every module (by its file's stem and by its dotted name) and class."""
    found: dict[str, set[str]] = defaultdict(set)
    for package in PACKAGES:
        for file in (package / "src").rglob("*.py"):
            parts = file.relative_to(package / "src").with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            body = ast.parse(file.read_text(encoding="utf-8")).body
            inside = {name for node in body for name in _names(node)}
            for first in range(len(parts)):
                found[".".join(parts[first:])] |= inside
                found[".".join(parts[first:-1])].add(parts[-1])
            for node in body:
                if isinstance(node, ast.ClassDef):
                    found[node.name] |= {name for part in node.body for name in _names(part)}
    return {name: frozenset(inside) for name, inside in found.items()}


def _names(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            for target in targets:
                yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.ImportFrom(names=names):
            yield from (each.asname or each.name for each in names)


def is_defined(dotted: str) -> bool:
    """Is the last name defined in the module or class that stands in front of it?"""
    owner, _, name = dotted.rpartition(".")
    return name in members().get(owner, ()) or name in members().get(owner.split(".")[-1], ())


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_files_and_folders_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = {found[0].removeprefix("./") for found in FILE.finditer(text)}
    named |= set(FOLDER.findall(text)) - BUILT

    assert sorted(each for each in named - set(SHOWN.findall(text)) if not is_there(each)) == []


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_dotted_names_that_a_page_mentions_are_defined(page: Path) -> None:
    named = set(DOTTED.findall(page.read_text(encoding="utf-8")))
    files = {each for each in named if is_there(each)}
    foreign = {each for each in named if each.startswith(("spaninfer.", "nox.", "urn."))}

    assert sorted(each for each in named - files - foreign if not is_defined(each)) == []


@pytest.mark.parametrize(
    ("room", "top"),
    [
        ("spaninfer_engine", "serving"),
        ("spaninfer_engine.load", "checkpoint"),
        ("spaninfer_engine.backends.cuda", "backend "),
    ],
)
def test_the_layers_of_a_room_are_those_of_its_import_contract(room: str, top: str) -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"^```text\n({top} .*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    drawn = [re.split(r" {2,}", line)[0] for line in block.splitlines()]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]

    (contract,) = (one for one in contracts if one.get("containers") == [room])
    assert drawn == contract["layers"]


@pytest.mark.parametrize("path", ["run/lower.py", "ops/cpu_script.py", "packages/engine/run/"])
def test_a_file_that_was_moved_is_missed(path: str) -> None:
    assert is_there("program/lower.py")
    assert not is_there(path)


@pytest.mark.parametrize("name", ["Batch.adapter", "step.batch.Batches", "Nothing.sync"])
def test_a_name_that_is_not_defined_is_missed(name: str) -> None:
    assert is_defined("Batch.masked")
    assert is_defined("spaninfer_engine.step.batch.build_batch")
    assert is_defined("step.batch.Batch")
    assert not is_defined(name)
