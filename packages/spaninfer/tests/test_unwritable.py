"""Standard error without room."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os
from spaninfer import show

show.note("nobody reads this")
print("on it goes", flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_what_has_no_room_on_standard_error_ends_no_program():
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=full, timeout=600
        )

    assert ran.stdout == b"on it goes\n"
