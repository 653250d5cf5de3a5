"""READMEs of kernel packages, each of which shows a call of every operator."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def code_of(readme: str) -> str:
    """The Python that a README shows, with what runs on a GPU."""
    text = (ROOT / readme).read_text(encoding="utf-8")
    return "".join(re.findall(r"^```python.*?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE))


def names_used(code: str, package: str) -> set[str]:
    """The names that code imports from a package or from its modules, and uses."""
    nodes = list(ast.walk(ast.parse(code)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    loaded = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    used = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            top, *inner = node.module.split(".")
            if top == package and loaded & {each.name for each in node.names}:
                used |= {each.name for each in node.names if each.name in loaded} | {*inner}
    return used


def not_shown(readme: str, package: str, names: set[str]) -> list[str]:
    """Which names its README does not use: of a module, itself or a name that it shares."""
    used = names_used(code_of(readme), package)
    door = importlib.import_module(package)
    missing = []
    for name in names - used:
        found = getattr(door, name)
        inside = set(getattr(found, "__all__", ())) if isinstance(found, ModuleType) else set()
        if not inside & names & used:
            missing.append(name)
    return sorted(missing)


@pytest.mark.parametrize(
    ("readme", "package"),
    [
        ("kernels-cuda/README.md", "spaninfer_kernels_cuda"),
        ("span-attention/README.md", "span_attention"),
    ],
)
def test_every_public_name_of_a_cuda_package_is_used(readme: str, package: str) -> None:
    door = importlib.import_module(package)

    assert not_shown(readme, package, set(door.__all__)) == []


def test_every_operator_of_the_cpu_kernels_is_called() -> None:
    """Its table begins lines with operators; calls that scripts are made of stand in prose."""
    text = (ROOT / "kernels-cpu/README.md").read_text(encoding="utf-8")
    operators = {found[1] for found in re.finditer(r"^\| `(\w+)\(", text, flags=re.MULTILINE)}

    assert operators >= {"attend", "select_keys", "pack_codes", "linear", "experts", "Sampler"}
    assert not_shown("kernels-cpu/README.md", "spaninfer_kernels_cpu", operators) == []


def test_a_name_that_is_only_imported_or_only_written_is_missed() -> None:
    code = (
        "from package import decode, merge\nfrom package.pool import take\ndecode = merge(take())"
    )

    assert names_used(code, "package") == {"merge", "pool", "take"}
    assert names_used(code.replace("merge(take())", "'merge'"), "package") == set()
