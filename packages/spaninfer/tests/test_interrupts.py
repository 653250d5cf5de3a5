"""Ctrl-C: noted, and raised only where the caller wants it."""

import os
import signal
import subprocess
import sys

import pytest
from spaninfer.interrupts import Interrupts


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_is_noted_and_raises_only_where_that_is_wanted():
    before = signal.getsignal(signal.SIGINT)

    with Interrupts() as interrupts:
        press()
        assert interrupts.came
        with pytest.raises(KeyboardInterrupt), interrupts.raised():
            press()
        assert not interrupts.came

    assert signal.getsignal(signal.SIGINT) is before


def test_one_that_comes_when_a_line_was_read_is_for_the_answer():
    with Interrupts() as interrupts:
        press()
        with interrupts.raised():
            pass
        assert not interrupts.came
        press()

        assert interrupts.came


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="waits for a signal")
def test_ctrl_c_that_a_callback_of_c_swallows_comes_again_and_nothing_is_printed():
    """LLVM calls back for every kernel that is loaded; Python cannot raise through it."""
    program = (
        "import ctypes, os, signal, time\n"
        "from spaninfer.interrupts import Swallowed\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "listening = Swallowed()\n"
        "@ctypes.CFUNCTYPE(None)\n"
        "def callback():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    for _ in range(1000): pass\n"
        "callback()\n"
        "print('went on', flush=True)\n"
        "try:\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    print('and was interrupted')\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("went on\nand was interrupted\n", "")


def test_what_else_is_ignored_is_still_told():
    program = (
        "from spaninfer.interrupts import Swallowed\n"
        "listening = Swallowed()\n"
        "class Broken:\n"
        "    def __del__(self): raise ValueError('a finalizer')\n"
        "Broken()\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert "ValueError: a finalizer" in done.stderr
