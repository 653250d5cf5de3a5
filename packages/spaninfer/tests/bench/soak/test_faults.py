"""Faults that reach into a server's processes."""

import asyncio
import subprocess
import sys

import pytest
from spaninfer.bench.soak import faults
from spaninfer.bench.soak.attacks import Attacker
from spaninfer.bench.soak.client import Tally, Target

# A server with a process below it, which tries to write a file for each line that it reads.
SERVER = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[2]])
"""
BELOW = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    try:
        with open(sys.argv[1], "a") as file:
            file.write(line)
        print("written", flush=True)
    except OSError as refused:
        print(refused.strerror, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems limit no other process")
def test_a_full_disk_is_full_for_the_processes_below_a_server_and_only_for_a_while(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(faults, "DISK_EVERY_S", 0.0)
    monkeypatch.setattr(faults, "DISK_FULL_S", 0.0)
    tally, said = Tally(), []

    with subprocess.Popen(
        [sys.executable, "-c", SERVER, BELOW, str(tmp_path / "file")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:

        def write() -> None:
            server.stdin.write("a line\n")
            server.stdin.flush()
            said.append(server.stdout.readline())

        async def attack() -> None:
            nobody = Target("127.0.0.1", 1, None)
            attacking = faults.full_disk(Attacker(nobody, nobody, server.pid), tally)
            monkeypatch.setattr(asyncio, "sleep", slept)
            await attacking

        async def slept(_seconds: float) -> None:
            write()

        said.append(server.stdout.readline())
        asyncio.run(attack())
        write()
        server.stdin.close()

    assert said == ["ready\n", "written\n", "File too large\n", "written\n"]
    assert (tally.sent, tally.statuses["200"]) == (1, 1)
