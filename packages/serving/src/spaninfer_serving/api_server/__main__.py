"""The command `python -m spaninfer_serving.api_server LISTENER LINK FIGURES`: each is the number of
an open file.
"""

from __future__ import annotations

import gc
import sys

from spaninfer_serving.lifeline import end_with

if __name__ == "__main__":
    listener, link, figures = map(int, sys.argv[1:])
    release = end_with(link)
    gc.disable()  # nothing of what follows is garbage: looking for some took a tenth of the time
    from spaninfer_serving.api_server.program import main  # seconds of imports

    gc.enable()

    main(listener, link, figures, release)
