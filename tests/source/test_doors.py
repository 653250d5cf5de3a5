"""Import contracts at the doors of packages, tried with imports that break them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

import pytest

pytest.importorskip("importlinter", reason="nox -s layers installs it")

ROOT = Path(__file__).parents[2]
SOURCES = [str(path) for path in (*ROOT.glob("packages/*/src"), *ROOT.glob("*/src"))]


CASES = [
    ("spaninfer_serving.jobs", "from spaninfer_engine import Engine", False),
    ("spaninfer_serving.jobs", "from spaninfer_engine.serving import Frontend", False),
    ("spaninfer_serving.jobs", "from spaninfer_engine.frontend.frontend import Frontend", True),
    ("spaninfer_serving.jobs", "from spaninfer_engine.tools import locate", True),
    ("spaninfer", "from spaninfer_engine.tools import locate", False),
    ("spaninfer", "from spaninfer_engine.serving import Frontend", True),
    ("spaninfer", "from spaninfer_serving import Settings", False),
    ("spaninfer", "from spaninfer_serving.tools import hash_of", False),
    ("spaninfer", "from spaninfer_serving.admission.keys import hash_of", True),
    (
        "spaninfer_engine.backends.torch",
        "from spaninfer_kernels_cuda.moe import GRAIN, moe",
        False,
    ),
    (
        "spaninfer_engine.backends.torch",
        "from spaninfer_kernels_cuda.moe.tuning import GRAIN",
        True,
    ),
    ("spaninfer_engine.backends.torch", "from spaninfer_kernels_cuda.codes import Code", True),
    ("spaninfer_engine.backends.torch", "from span_attention.decode import BatchDecode", False),
    ("spaninfer_engine.backends.torch", "from span_attention.layout import SpanLayout", True),
    ("spaninfer_engine.backends.torch", "from span_attention.mla.tuning import divide", True),
    ("spaninfer", "from spaninfer_kernel_launch import compiler_version", False),
    ("spaninfer", "from spaninfer_kernel_launch.toolchain import compiler_version", True),
    ("spaninfer_serving.jobs", "from spaninfer_multimodal.decode import decode_image", True),
    ("spaninfer", "def f():\n    from spaninfer_serving.server import Server", True),
    ("spaninfer", "def f():\n    import spaninfer_engine.schedule.scheduler", True),
]


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], CompletedProcess[str]]:
    """What the contracts say of all lines that are refused, each in a module of its own, and of all
    that are not: they are checked twice, not for each line.
    """

    @cache
    def check(refused: bool) -> CompletedProcess[str]:
        folder = tmp_path_factory.mktemp("sources")
        for package in {room.partition(".")[0] for room, _, _ in CASES}:
            (source,) = ROOT.glob(f"packages/*/src/{package}")
            shutil.copytree(source, folder / package)
        for number, (room, line, is_refused) in enumerate(CASES):
            if is_refused is refused:
                newcomer = folder.joinpath(*room.split("."), f"newcomer_{number}.py")
                newcomer.write_text(line, encoding="utf-8")
        return subprocess.run(
            [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
            cwd=ROOT,
            env=os.environ
            | {"COLUMNS": "200", "PYTHONPATH": os.pathsep.join([str(folder), *SOURCES])},
            capture_output=True,
            text=True,
        )

    return check


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: CASES[number][1])
def test_packages_are_entered_by_their_doors(
    number: int, verdict: Callable[[bool], CompletedProcess[str]]
) -> None:
    room, _, refused = CASES[number]

    done = verdict(refused)

    assert done.returncode == int(refused), done.stdout
    assert (f"- {room}.newcomer_{number} -> span" in done.stdout) is refused, done.stdout
