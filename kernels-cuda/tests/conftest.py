"""Arrays of torch and cupy on the GPU, made of numpy's and turned back into them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests" / "fixtures"))

from frameworks import on_gpu  # noqa: F401
