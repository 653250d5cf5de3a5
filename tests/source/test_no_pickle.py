"""Sources that could run code they read: no pickle, no eval, no library's equivalent."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for package in (*ROOT.glob("packages/*"), *ROOT.glob("*/pyproject.toml"))
    for path in (package if package.is_dir() else package.parent).rglob("src/**/*.py")
)

MODULES = {
    "pickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "multiprocessing",
    "shelve",
}
CALLS = {"eval", "exec", "compile", "__import__"}
LOADERS = {("torch", "load"), ("yaml", "load"), ("serialize", "dumps"), ("serialize", "loads")}


def found_in(source: str) -> Iterator[str]:
    """Yield what a source has of all that, with its line."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                modules = [name.name for name in names]
            case ast.ImportFrom(module=str(module), names=names):
                modules = [module, *(name.name for name in names)]
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                yield f"{node.lineno}: {name}()"
                continue
            case ast.Attribute(value=ast.Name(id=module), attr=name) if (module, name) in LOADERS:
                yield f"{node.lineno}: {module}.{name}"
                continue
            case ast.keyword(arg="allow_pickle", value=value):
                if not (isinstance(value, ast.Constant) and value.value is False):
                    yield f"{node.lineno}: allow_pickle"
                continue
            case _:
                continue
        for module in modules:
            if module.partition(".")[0] in MODULES:
                yield f"{node.lineno}: import {module}"


def test_there_are_sources():
    packages = {path.relative_to(ROOT).parts[:2] for path in SOURCES}

    assert len(SOURCES) > 300
    assert {("packages", "engine"), ("kernels-cpu", "src"), ("span-attention", "src")} <= packages


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import os, marshal",
        "from torch import multiprocessing",
        "def f():\n    import shelve",
        "eval('1')",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=chosen)",
    ],
)
def test_each_of_them_is_found(source):
    assert list(found_in(source))


def test_no_source_has_any():
    found = [
        f"{path.relative_to(ROOT)}:{one}"
        for path in SOURCES
        for one in found_in(path.read_text(encoding="utf-8"))
    ]

    assert found == []
