"""Lists of conversations with media: prepared side by side, answered and refused in order."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from asked_parts import user
from first_qwen import FIRST_QWEN, save_first_qwen
from PIL import Image
from spaninfer_engine import Engine
from spaninfer_engine import engine as of_engine
from spaninfer_engine.errors import InvalidMedia

SMALL = {"max_len": 768, "max_running": 4, "memory": "32MiB", "encoder_memory": "1MiB"}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("seeing")
    config = next(each for each in FIRST_QWEN.values() if "visual" in each)
    save_first_qwen(folder, config)
    with Engine(folder, backend="reference", **SMALL) as engine:  # type: ignore[arg-type]
        yield engine


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    for number, path in enumerate(paths):
        Image.new("RGB", (40, 30), (60 * number, 90, 200)).save(path)
    return paths


class Meeting(PathLike[str]):
    """A path that is read when as many are being read as the barrier has parties."""

    def __init__(self, path: Path, barrier: Barrier) -> None:
        self._path, self._barrier = path, barrier

    def __fspath__(self) -> str:
        self._barrier.wait(timeout=60)
        return str(self._path)


def about(source: Any) -> list[dict[str, Any]]:
    return [user({"type": "image", "image": source}, "What is this?")]


def test_answers_come_in_order_of_conversations_that_are_prepared_together(
    seeing: Engine, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_engine, "usable_cpus", lambda: len(files))
    barrier = Barrier(len(files))
    asked = [about(Meeting(path, barrier)) for path in files]

    told = seeing.chat(asked, max_tokens=1, temperature=0.0, logprobs=5)

    alone = [seeing.chat(about(path), max_tokens=1, temperature=0.0, logprobs=5) for path in files]
    for one, other in zip(told, alone, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs[0].logprob == pytest.approx(other.logprobs[0].logprob, abs=1e-5)
    assert len({one.logprobs[0].logprob for one in told}) == len(files)


def test_of_several_conversations_at_fault_the_first_is_named(
    seeing: Engine, files: list[Path]
) -> None:
    missing = [files[0].parent / f"missing {number}.png" for number in range(2)]
    asked = [about(files[0]), about(missing[0]), about(files[1]), about(missing[1])]

    with pytest.raises(InvalidMedia, match=r"missing 0\.png"):
        seeing.chat(asked, max_tokens=1)
