"""The path of fixtures/, whose modules the tests import by bare names."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "fixtures"))
sys.path.append(str(Path(__file__).parents[2] / "tests" / "fixtures"))
