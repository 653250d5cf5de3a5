"""The program of the engine's process: `python -m spaninfer.engine_process FILE serve …`.

FILE is the number of an open file, the way to the supervisor that has started it.
"""

from __future__ import annotations

import sys

from spaninfer.__main__ import run

if __name__ == "__main__":
    run(sys.argv[2:], control=int(sys.argv[1]))
