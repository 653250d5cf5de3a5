"""Models are built once for all oracle tests, and held while tests of theirs follow each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pytest
from cases import Case

MAX_HELD = 4
"""Cases that stay in memory: oracles and models of all 120 took 2 GB."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests of one case one behind the other, in the place of the first test of any case."""
    of_cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if (name := _case_of(item)) is not None:
            of_cases.setdefault(name, []).append(item)
    if of_cases:
        first = items.index(next(iter(of_cases.values()))[0])
        sorted_ = [item for each in of_cases.values() for item in each]
        moved = set(sorted_)
        items[first:] = [*sorted_, *(item for item in items[first:] if item not in moved)]


def _case_of(item: pytest.Item) -> str | None:
    """Return the name of the case that a test is about; None where it is about none, or several."""
    asked = getattr(item, "fixturenames", ())
    named = getattr(getattr(item, "callspec", None), "params", {})
    return named.get("name") if "load" in asked else None


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small matrices gain nothing from threads, and lose when other work runs beside them."""
    pytest.importorskip("torch").set_num_threads(1)


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Return a case by its name."""
    return lru_cache(MAX_HELD)(lambda name: Case(name, tmp_path_factory.mktemp("model")))
