"""The program of the engine's process: `python -m spaninfer.engine_process FILE serve …`.

FILE is the number of an open file, the way to the supervisor that has started it.
"""

from __future__ import annotations

import sys

from spaninfer_serving import end_with

from spaninfer.__main__ import run

if __name__ == "__main__":
    control = int(sys.argv[1])
    end_with(control)  # nobody would know of its end, and another server may take its address
    run(sys.argv[2:], control=control)
