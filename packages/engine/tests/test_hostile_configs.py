"""No config.json makes the CPU backend touch memory that is not its own, or fail with an error that
is not ours: each is refused by name, or computes.

Every number of every family's config in turn becomes each of fifty values: all of them in the
sweep, some drawn at random otherwise. The processes that serve
them have pages that may not be touched around every buffer (fixtures/hostile_worker.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

import hostile
import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="pages are protected and address space limited as on Linux"
)

FEW = 60


@pytest.mark.parametrize("seed", [0])
def test_a_hostile_config_is_refused_or_computes(tmp_path: Path, seed: int) -> None:
    failed = hostile.run(hostile.some(FEW, seed), tmp_path)

    assert not failed, "\n".join(f"{case}: {outcome}" for case, outcome in failed)


@pytest.mark.parametrize("seed", [0])
def test_a_hostile_config_of_a_tower_is_refused_or_computes(tmp_path: Path, seed: int) -> None:
    failed = hostile.run(hostile.of_towers(FEW // 2, seed), tmp_path)

    assert not failed, "\n".join(f"{case}: {outcome}" for case, outcome in failed)


@pytest.mark.sweep
@pytest.mark.parametrize("family", hostile.NAMES)
def test_no_value_of_any_number_of_a_family_does_harm(tmp_path: Path, family: str) -> None:
    failed = hostile.run(list(hostile.cases(family)), tmp_path)

    assert not failed, "\n".join(f"{case}: {outcome}" for case, outcome in failed)


def test_more_than_a_head_is_never_rotated(tmp_path: Path) -> None:
    """Seen before: answers made of neighbouring memory, "free(): invalid pointer", SIGSEGV."""
    fractions = (1.5, 4.0, 16.0, 64.0, 1024.0)
    cases = [case for fraction in fractions for case in hostile.rotary(fraction)]

    failed = hostile.run(cases, tmp_path)

    names = {case.path[-1] for case in cases}
    assert names == {"partial_rotary_factor", "rotary_pct", "rope_pct"}
    assert not failed, "\n".join(f"{case}: {outcome}" for case, outcome in failed)


def test_what_does_harm_would_be_seen(tmp_path: Path) -> None:
    """The worker itself: a byte written in front of a buffer, and one behind it."""
    front, behind, none = (hostile.provoke(what, tmp_path) for what in ("in front", "behind", ""))

    assert front == "a kernel wrote beside its memory"
    assert "the process died, status -11" in behind
    assert none == ""
