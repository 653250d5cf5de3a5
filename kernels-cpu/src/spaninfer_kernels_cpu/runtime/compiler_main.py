"""The program of a process that compiles kernels for another one (`compilers`).

Standard input brings a kernel's name per line; when its code is on disk, standard output says
"ready", and once before the first.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from queue import SimpleQueue
from threading import Thread

from spaninfer_kernels_cpu.codegen.kernel import address_of, kernel_of


def main() -> None:
    """Compile until standard input ends, which ends the process at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells all; the other one decides
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else is printed is no answer
    names: SimpleQueue[str] = SimpleQueue()
    Thread(target=_listen, args=(names,), daemon=True).start()
    while True:
        print("ready", file=answers, flush=True)
        address_of(kernel_of(json.loads(names.get())))


def _listen(names: SimpleQueue[str]) -> None:
    for name in sys.stdin:
        names.put(name)
    os._exit(0)  # what the other thread compiles is no longer needed
