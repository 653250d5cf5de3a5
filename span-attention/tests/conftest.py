"""Conversion of arrays between numpy and torch or cupy on the GPU."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests" / "fixtures"))

from frameworks import on_gpu  # noqa: F401
