"""Encodings shared by several steps, over a tower that counts its calls."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import pytest
from spaninfer_engine.backends.encodings import Encodings
from spaninfer_engine.backends.host.tower import Encoding
from spaninfer_engine.backends.reference.ops import ReferenceOps
from spaninfer_engine.request.media import TowerInput
from spaninfer_engine.step.batch import MediaRows

KERNELS = 10


def picture(name: str) -> TowerInput:
    return TowerInput("image", np.zeros((4, 3), np.float32), 1, name.encode(), (1, 2, 2))


class Tower:
    """Runs kernels that are only counted; fails at one of them for pictures that are torn."""

    def __init__(self) -> None:
        self.ran = 0

    def __call__(self, inputs: Sequence[TowerInput]) -> Generator[int, None, list[Encoding[Any]]]:
        for left in range(KERNELS - 1, -1, -1):
            self.ran += 1
            if left == 4 and any(each.digest.startswith(b"torn") for each in inputs):
                raise ValueError("torn")
            yield left
        return [Encoding(np.full((1, 2), len(each.digest), np.float32)) for each in inputs]

    def close(self) -> None:
        self.ran = 0


def made() -> tuple[Tower, Encodings[Any]]:
    tower = Tower()
    return tower, Encodings(tower, ReferenceOps())


def row_of(encodings: Encodings[Any], name: str) -> list[float]:
    return encodings.replaced([MediaRows(0, 0, 1, name.encode(), 0)]).vectors[0].tolist()


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 10, 11, 20])
def test_steps_share_the_kernels_and_the_last_one_leaves_none(num_steps: int) -> None:
    tower, encodings = made()
    shares = []

    for left in range(num_steps, 0, -1):
        before = tower.ran
        assert encodings.update([picture("cat")] if left == num_steps else [], [], left) == {}
        shares.append(tower.ran - before)

    assert sum(shares) == KERNELS
    assert max(shares) <= -(-KERNELS // num_steps) + 1
    assert row_of(encodings, "cat") == [3, 3]


def test_new_media_and_fewer_steps_finish_what_is_under_way() -> None:
    tower, encodings = made()

    encodings.update([picture("cat")], [], 5)
    encodings.update([picture("mouse")], [], 5)
    assert row_of(encodings, "cat") == [3, 3]
    encodings.update([], [], 1)

    assert row_of(encodings, "mouse") == [5, 5]
    assert tower.ran == 2 * KERNELS


def test_one_that_fails_in_a_later_step_fails_alone() -> None:
    _, encodings = made()

    failed = encodings.update([picture("torn"), picture("cat")], [], 2)
    failed |= encodings.update([], [], 1)

    assert {digest: str(error) for digest, error in failed.items()} == {b"torn": "torn"}
    assert row_of(encodings, "cat") == [3, 3]


def test_dropped_encodings_are_gone() -> None:
    _, encodings = made()
    encodings.update([picture("cat")], [])

    encodings.update([], [b"cat"])

    with pytest.raises(KeyError):
        row_of(encodings, "cat")
