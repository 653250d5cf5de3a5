"""Progress while a model loads."""

import re
import time
from io import StringIO

import pytest
from rich.console import Console
from spaninfer import loading

UNENDING_S = 600.0


@pytest.fixture
def screen(monkeypatch):
    """What turns standard error into a terminal or a file, and returns what is written there."""

    def opened(*, is_terminal):
        written = StringIO()
        console = Console(file=written, force_terminal=is_terminal, width=80, color_system=None)
        monkeypatch.setattr(loading, "Diagnostics", lambda: console)
        return written

    return opened


def load(*until):
    with loading.loading() as told:
        for stage, done, total in [("weights", 3, 3), ("kernels", 0, 40), *until]:
            told(stage, done, total)


def test_a_terminal_shows_how_far_every_stage_of_loading_is(screen):
    written = screen(is_terminal=True)

    load(("kernels", 30, 40))

    assert re.search(r"weights .* 100%", written.getvalue())
    assert re.search(r"kernels .* 75%", written.getvalue())


@pytest.mark.parametrize("until", [(), (("kernels", 40, 40),)])
def test_a_log_has_no_bars_and_no_line_of_kernels_that_are_ready_at_once(
    screen, monkeypatch, until
):
    written = screen(is_terminal=False)
    monkeypatch.setattr(loading, "PATIENCE_S", UNENDING_S)

    load(*until)

    assert written.getvalue() == ""


def test_a_log_says_once_that_kernels_take_a_while(screen, monkeypatch):
    written = screen(is_terminal=False)
    monkeypatch.setattr(loading, "PATIENCE_S", 0.0)

    with loading.loading() as told:
        told("kernels", 0, 1)
        while not written.getvalue().endswith("\n"):
            time.sleep(0.01)
        told("kernels", 0, 1)
        told("kernels", 1, 1)

    assert written.getvalue() == "preparing kernels; the first start on a machine compiles them\n"
