"""Listening sockets of a server: the given address and no other (cf. CVE-2025-30202 and
CVE-2025-47277, internal sockets open on every interface).
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="sockets are listed from /proc"),
    pytest.mark.slow,
]

LISTENS = "0A"  # a state of /proc/net/tcp
PIXEL = base64.b64encode(bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc0"
    "00000301010018dd8db00000000049454e44ae426082"
)).decode()  # fmt: skip


def processes_below(pid: int) -> Iterator[int]:
    """Yield a process and all that it started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from processes_below(int(child))


def sockets_of(pid: int) -> set[str]:
    """Return the inodes of a process' sockets."""
    names = [
        str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()
    ]
    return {match[1] for name in names if (match := re.fullmatch(r"socket:\[(\d+)\]", name))}


def listening(inodes: set[str]) -> set[tuple[str, int]]:
    """Return the addresses, as the kernel writes them, and ports at which these sockets listen."""
    found = set()
    for table in ("tcp", "tcp6"):
        path = Path("/proc/net") / table
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            address, port = fields[1].split(":")
            if fields[3] == LISTENS and fields[9] in inodes:
                found.add((address, int(port, 16)))
    return found


@pytest.mark.parametrize("more", [(), ("--api-server-count", "2")], ids=["one", "with API servers"])
def test_a_server_listens_where_it_was_asked_to_and_nowhere_else(serve, more) -> None:
    with serve(*more) as server:
        url = f"data:image/png;base64,{PIXEL}"
        image = {"type": "image_url", "image_url": {"url": url}}
        body = {"messages": [{"role": "user", "content": [image]}], "max_tokens": 2}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
        assert answer.status_code == 200, "the processes that decode have started, too"

        family = list(processes_below(server.process.pid))
        found = listening(set().union(*map(sockets_of, family)))

        assert len(family) > (3 if more else 1)
        assert found == {("0100007F", urlsplit(server.url).port)}
        assert server.stop() == 0
