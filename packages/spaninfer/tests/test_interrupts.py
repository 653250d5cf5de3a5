"""Ctrl-C that is asked for, and one that is raised."""

import os
import signal

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
