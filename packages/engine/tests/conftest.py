"""What all tests of the engine share."""

import sys
from pathlib import Path

# Helpers of several test files are modules of the folder fixtures/, imported by their bare names.
sys.path.append(str(Path(__file__).parent / "fixtures"))
