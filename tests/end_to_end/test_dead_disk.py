"""A server whose weights are to come from a disk that dies while they are read.

The disk is a file system of the tests' own (FUSE), so calls really wait in the kernel: as those of
NFS do, which SIGKILL ends, and as those of devices that hold them until they answer.
"""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import dead_disk
import httpx
import pytest
import spaninfer_demo
from mounts import namespace

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs FUSE")]
LIMIT_S = 300.0  # only ends a test that has failed
OPENING, READING, MAPPED = -1, 0, 1 << 20  # what touches the bytes from here on waits


@dataclass
class Disk:
    """A disk with a checkpoint, and the command below which it is there."""

    source: Path
    folder: Path
    below: list[str | Path]

    def die(self, first_byte: int, *, is_held: bool) -> None:
        if is_held:
            (self.source / "holds").touch()
        (self.source / "dead").write_text(str(first_byte))

    def wait_until_waited_for(self) -> None:
        give_up_s = monotonic() + LIMIT_S
        while not (self.source / "waits").exists():
            assert monotonic() < give_up_s, "nobody reads from the disk"
            sleep(0.01)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    unshared = namespace()
    if unshared is None or not Path("/dev/fuse").exists():
        pytest.skip("no file system can be mounted here: FUSE, and root or user namespaces")
    source, folder = tmp_path / "source", tmp_path / "disk"
    folder.mkdir()
    shutil.copytree(Path(spaninfer_demo.__file__).parent / "model", source / "step-1")
    return Disk(source, folder, [*unshared, sys.executable, dead_disk.__file__, source, folder])


@pytest.fixture
def admin_file(tmp_path: Path) -> Path:
    path = tmp_path / "admins"
    path.write_text("4813494d137e1631bba301d5acab6e7bb7aa74ce1185d456565ef51d737677b2\n")
    return path


@dataclass(frozen=True)
class Wait:
    """How calls wait for the disk, the processes of the server, and how that ends."""

    first_byte: int
    api_servers: int
    number: int
    says: str
    code: int
    is_held: bool = False  # not even SIGKILL ends a call


WAITS = {
    "opening": Wait(OPENING, 0, signal.SIGTERM, "a change of weights did not end within 5 s", 1),
    "reading": Wait(READING, 1, signal.SIGINT, "a change of weights did not end within 5 s", 1),
    "mapped": Wait(MAPPED, 1, signal.SIGTERM, "within 20 s, 0 of them to drain; it is killed", 137),
    "held": Wait(OPENING, 0, signal.SIGTERM, "cannot be killed; it stays", 1, is_held=True),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_signal_ends_a_server_that_reads_weights_from_a_dead_disk(
    serve, disk: Disk, admin_file: Path, name: str
) -> None:
    wait = WAITS[name]
    arguments = ("--weights-folder", disk.folder, "--admin-key-file", admin_file, "--drain", "0")
    arguments += ("--backend", "reference", "--api-server-count", str(wait.api_servers))
    with serve(*arguments, below=disk.below) as server:

        def update() -> None:
            with suppress(httpx.HTTPError):
                httpx.post(
                    f"{server.url}/update_weights_from_disk",
                    json={"model_path": "step-1"},
                    headers={"Authorization": "Bearer root"},
                    timeout=LIMIT_S,
                )

        asking = threading.Thread(target=update)
        disk.die(wait.first_byte, is_held=wait.is_held)
        asking.start()
        disk.wait_until_waited_for()
        live = httpx.get(f"{server.url}/health/live", timeout=LIMIT_S) if name != "mapped" else None
        code = server.stop(wait.number)
        asking.join()

    assert live is None or live.status_code == 200
    assert wait.says in server.printed
    assert code == wait.code
