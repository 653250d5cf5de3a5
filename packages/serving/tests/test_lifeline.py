"""Processes that end with the one that started them."""

import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no Unix sockets are inherited")
PROGRAM = """
import sys, time
from spaninfer_serving import end_with

release = end_with(int(sys.argv[1]))
if sys.argv[2] == "released":
    release()
print("begun", flush=True)
sys.stdin.read() if sys.argv[2] == "released" else time.sleep(600)
"""


@pytest.mark.parametrize(("what", "code"), [("watched", 1), ("released", 0)])
def test_a_process_ends_with_the_other_side_until_it_is_released(what, code):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(theirs.fileno()), what],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        theirs.close()
        assert process.stdout.readline() == b"begun\n"
        ours.sendall(b"what nobody reads")
    if what == "released":
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
    process.communicate(timeout=120)

    assert process.returncode == code
