"""Helpers of several test files are modules of the folder fixtures/, imported by bare names."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "fixtures"))
sys.path.append(str(Path(__file__).parents[2] / "tests" / "fixtures"))
