"""Import contracts at the doors of packages, tried with imports that break them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("importlinter", reason="nox -s layers installs it")

ROOT = Path(__file__).parents[2]
SOURCES = [str(path) for path in (*ROOT.glob("packages/*/src"), *ROOT.glob("*/src"))]


@pytest.mark.parametrize(
    ("room", "line", "refused"),
    [
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
    ],
)
def test_packages_are_entered_by_their_doors(
    tmp_path: Path, room: str, line: str, refused: bool
) -> None:
    package, *folders = room.split(".")
    (source,) = ROOT.glob(f"packages/*/src/{package}")
    shutil.copytree(source, tmp_path / package)
    newcomer = tmp_path.joinpath(package, *folders, "newcomer.py")
    newcomer.write_text(line, encoding="utf-8")

    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *SOURCES])},
        capture_output=True,
        text=True,
    )

    assert done.returncode == int(refused), done.stdout
    assert (f"- {room}.newcomer -> span" in done.stdout) is refused
