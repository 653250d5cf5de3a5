"""Engines on backends other than cpu, which do not import Numba."""

import subprocess
import sys

import pytest

REFERENCE = """
from spaninfer_engine import Engine
from spaninfer_engine.request.request import SamplingParams

with Engine("demo", backend="reference", device="cpu", memory=1 << 28) as engine:
    engine.generate(["Once"], SamplingParams(max_tokens=2))
"""

ALL_BUT_CPU = """
import importlib, pkgutil
import spaninfer_engine

for module in pkgutil.walk_packages(spaninfer_engine.__path__, "spaninfer_engine."):
    if not module.name.startswith(("spaninfer_engine.backends.cpu.", PACKED)):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as missing:  # torch, or the compiler's bindings
            assert not missing.name.startswith("spaninfer_engine"), missing
importlib.import_module("spaninfer_engine.backends.cpu.backend")
"""

LOADED = """
import sys
print([name for name in ("numba", "llvmlite", "spaninfer_kernels_cpu") if name in sys.modules])
"""


@pytest.mark.parametrize(
    "program",
    [
        "from spaninfer_engine import *",
        REFERENCE,
        "PACKED = 'spaninfer_engine.startup.packed_weights'" + ALL_BUT_CPU,
    ],
    ids=["import", "a reference engine", "every module of other backends"],
)
def test_numba_is_not_imported_by(program):
    ran = subprocess.run(
        [sys.executable, "-c", program + LOADED], capture_output=True, text=True, check=False
    )

    assert (ran.stdout, ran.returncode) == ("[]\n", 0), ran.stderr
