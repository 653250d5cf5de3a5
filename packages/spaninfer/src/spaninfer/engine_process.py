"""The program of the engine's process: `python -m spaninfer.engine_process FILE serve …`.

FILE is the number of an open file, the way to the supervisor that has started it.
"""

import sys

from spaninfer.ctrl_c import end_program

if __name__ == "__main__":
    end_program()
    from spaninfer_serving import end_with

    control = int(sys.argv[1])
    end_with(control)  # nobody would know of its end, and another server may take its address
    from spaninfer.process import run

    run(sys.argv[2:], control=control)
