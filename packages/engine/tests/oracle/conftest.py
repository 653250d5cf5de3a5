"""Models are built once for all oracle tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from cases import Case


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Small matrices gain nothing from threads, and lose when other work runs beside them."""
    pytest.importorskip("torch").set_num_threads(1)


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Return a case by its name."""
    return cache(lambda name: Case(name, tmp_path_factory.mktemp("model")))
