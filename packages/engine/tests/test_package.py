"""The doors of the package: what they offer, and that they import what is asked for alone."""

import ast
import gc
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from spaninfer_engine.lazy import without_collector

DOORS = ("spaninfer_engine", "spaninfer_engine.serving", "spaninfer_engine.tools")


@pytest.mark.parametrize("name", DOORS)
def test_what_a_door_offers_is_what_type_checkers_see(name):
    door = import_module(name)
    source = ast.parse(Path(door.__file__).read_text(encoding="utf-8"))
    (typed,) = (node.body for node in source.body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name: getattr(import_module(line.module), alias.name)
        for line in typed
        for alias in line.names
        if alias.asname != alias.name  # a type alone
    }

    assert sorted(seen) == sorted(door.__all__)
    for each, found in seen.items():
        assert getattr(door, each) is found, each
    assert set(dir(door)) >= set(door.__all__)
    with pytest.raises(AttributeError, match=f"'{name}' has no attribute 'nothing'"):
        door.nothing  # noqa: B018


def test_all_of_a_door_can_be_imported_at_once():
    program = "from spaninfer_engine import *; print(Engine.__name__, NoMemory.__name__)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("Engine NoMemory\n", "")


@pytest.mark.parametrize("name", DOORS)
def test_a_door_is_opened_and_listed_without_what_is_behind_it(name):
    program = (
        f"import sys, {name} as door\n"
        "assert set(dir(door)) >= set(door.__all__)\n"
        f"print({{each for each in sys.modules if each.startswith('spaninfer_engine.')}}"
        f" - {{'spaninfer_engine.lazy', {name!r}}})"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("set()\n", "")


@pytest.mark.parametrize("is_on", [True, False])
def test_an_import_without_the_collector_leaves_it_as_it_was(is_on):
    was_on = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        with suppress(ImportError), without_collector():
            is_off = not gc.isenabled()
            raise ImportError
        left = gc.isenabled()
    finally:
        (gc.enable if was_on else gc.disable)()

    assert is_off
    assert left is is_on
