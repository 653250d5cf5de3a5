import sys
from pathlib import Path

# The training scripts are programs in a folder, not a package that is installed.
sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
