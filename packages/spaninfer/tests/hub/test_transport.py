"""Downloads: what is sent and to whom, progress, and a disk that fills up."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
import spaninfer_demo
from spaninfer.hub import HubName, pull
from spaninfer_engine import ConfigError

NAME = HubName("org/tiny")
WEIGHTS = "model.safetensors"
TINY = {file.name: file.read_bytes() for file in Path(spaninfer_demo.path()).iterdir()}
TOKEN = "hf_secret"
PULL = [sys.executable, "-m", "spaninfer", "pull", NAME.repo]

needs_other_loopback = pytest.mark.skipif(
    sys.platform != "linux", reason="127.0.0.2 is an address of this machine on Linux"
)


def test_the_token_is_sent_with_every_question_and_with_none_where_there_is_none(hub, monkeypatch):
    pull(NAME, with_weights=False)
    assert set(hub.tokens) == {None}
    hub.tokens.clear()
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    pull(NAME)

    assert set(hub.tokens) == {f"Bearer {TOKEN}"}


@needs_other_loopback
@pytest.mark.parametrize("begin", [f"/org/tiny/resolve/{{}}/{WEIGHTS}", "/api/models/org/tiny"])
def test_the_token_goes_to_no_other_host_that_the_hub_sends_on_to(
    begin, hub, elsewhere, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.sends_on = (begin.format(hub.commit(NAME.repo)), elsewhere.url)

    folder = pull(NAME)

    assert (folder / WEIGHTS).read_bytes() == TINY[WEIGHTS]
    assert set(hub.tokens) == {f"Bearer {TOKEN}"}
    assert elsewhere.asked
    assert set(elsewhere.tokens) == {None}
    assert all(path.startswith(hub.sends_on[0]) for _, path, _ in elsewhere.asked)


@needs_other_loopback
def test_the_hub_is_the_one_of_the_environment_and_no_other_is_asked(hub, elsewhere, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", f"{elsewhere.url}/")

    pull(NAME, with_weights=False)

    assert elsewhere.asked
    assert hub.asked == []


def test_names_of_files_that_lead_out_of_the_cache_write_nothing_there(hub, tmp_path):
    """As CVE-2024-37032: a server's name for a file is no path of this machine."""
    evil = [
        f"{way}{name}"
        for way in (
            *("../" * depth for depth in range(1, 9)),
            "/",
            "a/../../",
            "1_a/../../../../../",
        )
        for name in ("escaped.json", "escaped.safetensors", "escaped/config.json")
    ]
    hub.repos["org/evil"] = TINY | dict.fromkeys(evil, b"{}")
    before = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}

    with contextlib.suppress(ConfigError):
        pull(HubName("org/evil"))

    assert not [path for path in hub.fetched() if "escaped" in path]
    assert not list(Path("/").glob("escaped*"))
    assert not list(tmp_path.rglob("escaped*"))
    assert {path for path in tmp_path.rglob("*") if "cache" not in path.parts} == before


def shown(command: list[str]) -> str:
    """Run a command whose standard error is a terminal; return what that showed."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    pieces: list[bytes] = []

    def read() -> None:
        try:
            while piece := os.read(ours, 4096):
                pieces.append(piece)
        except OSError:  # the other side has closed it, as Linux says it
            pass

    reading = threading.Thread(target=read)
    reading.start()
    ran = subprocess.run(command, stderr=theirs, stdout=subprocess.DEVNULL, check=False)
    os.close(theirs)
    reading.join()
    os.close(ours)
    said = b"".join(pieces).decode()
    assert ran.returncode == 0, said
    return said


def test_a_terminal_shows_how_far_the_download_is_and_a_file_does_not(hub):
    hub.rests_s = 0.2  # progress is drawn ten times a second at the most
    said = shown(PULL)
    hub.rests_s = 0.0
    piped = subprocess.run(
        [*PULL[:-1], "org/files:Q8_0"], capture_output=True, text=True, check=True
    )

    size = re.escape(f"{len(TINY[WEIGHTS]) / 1e6:.1f}M")
    passed = [int(part) for part in re.findall(rf"(\d+)%[^\r\n]*/ *{size}", said)]
    assert passed[-1] == 100, said
    assert any(0 < each < 100 for each in passed), "before it was there"
    assert "%" not in piped.stderr


FILLS = """
set -e
mount -t tmpfs -o size=14m none "$HF_HUB_CACHE"
"$@" && exit 3
find "$HF_HUB_CACHE" -name "*.incomplete" | grep . && exit 4
echo "---" >&2
mount -o remount,size=64m "$HF_HUB_CACHE"
"$@"
cmp "$MODEL/model.safetensors" "$HF_HUB_CACHE"/models--org--tiny/snapshots/*/model.safetensors
"""


def test_a_disk_that_fills_while_a_file_comes_is_a_sentence_and_whole_files_are_kept(hub, tmp_path):
    """Sizes that are not known beforehand: a file system of 14 MB for a file of 24."""
    space = [shutil.which("unshare") or "unshare", "--mount"]
    works = shutil.which("unshare") and subprocess.run(
        [*space, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
    ).returncode == 0  # fmt: skip
    if not works:
        pytest.skip("no mount namespace can be made here: Linux, and root")
    hub.tells_sizes = False
    (tmp_path / "cache").mkdir()

    ran = subprocess.run(
        [*space, "sh", "-c", FILLS, "sh", *PULL],
        env=os.environ | {"MODEL": str(spaninfer_demo.path())},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    first, _, second = ran.stderr.partition("---")
    assert ran.returncode == 0, ran.stderr
    told = " ".join(first.split())
    sentence = (
        r"org/tiny takes more than 0\.0 GB \([\d,]+ bytes\), and 0\.0 GB \(([\d,]+) bytes\) are "
        r"free in \S+; make room .* HF_HOME to a larger disk, and repeat the command; complete "
        r"files are kept"
    )
    free = re.search(sentence, told)
    assert free, told
    assert 0 < int(free[1].replace(",", "")) < 14 << 20
    assert "Traceback" not in ran.stderr
    small = [path for path in hub.fetched() if path != WEIGHTS]
    assert sorted(small) == sorted(set(TINY) - {WEIGHTS}), "what came whole is not fetched again"
    assert hub.fetched().count(WEIGHTS) >= 2
    assert second.strip() == ""
