"""Every command in a read-only container, run by a user without an account."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from mounts import run_beside

ROOT = Path(__file__).parents[2]

EMBEDDED = """
from spaninfer import Engine, SamplingParams
with Engine("demo", backend="cpu") as engine:
    print(engine.generate("Once upon a time", SamplingParams(max_tokens=4)).text)
"""

ANSWERED = """
import re, subprocess, sys, urllib.request
serve = [sys.executable, "-m", "spaninfer", "serve", "--port", "0", "--backend", "cpu"]
with subprocess.Popen(serve, stderr=subprocess.PIPE, text=True) as server:
    for line in server.stderr:
        if found := re.search(r"OpenAI API  (\\S+)/v1", line):
            break
        print(line, end="", file=sys.stderr)
    print(urllib.request.urlopen(found[1] + "/health").status)
    server.terminate()
    server.stderr.read()
"""

COMMANDS = {
    "generate": ("-m", "spaninfer", "generate", "demo", "Once upon", "--backend", "cpu"),
    "engine": ("-c", EMBEDDED),
    "serve": ("-c", ANSWERED),
    "convert": ("-m", "spaninfer", "convert", "demo", "OUT/converted", "--quantize", "int8"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    """What runs a command read-only behind those that warm the cache beside the package.

    One that generates warms it for all that do, as a container's image is made.
    """
    folder = tmp_path_factory.mktemp("read_only")
    tmp, out = folder / "tmp", folder / "out"
    for each in (tmp, out):
        each.mkdir()

    def start(name: str, *, read_only: tuple[Path, ...], out: Path = out):
        arguments = [word.replace("OUT", str(out)) for word in COMMANDS[name]]
        environment = {"HOME": None, "NUMBA_CACHE_DIR": None, "TMPDIR": str(tmp)}
        return run_beside(arguments, environment, read_only=read_only, as_stranger=bool(read_only))

    @cache
    def warm(name: str) -> None:
        first = start(name, read_only=(), out=folder)
        assert first.returncode == 0, first.stderr

    def run_read_only(name: str):
        warm("convert" if name == "convert" else "generate")
        return start(name, read_only=(ROOT, tmp))

    return run_read_only


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_runs_where_nothing_but_its_output_can_be_written(run, name: str) -> None:
    ran = run(name)

    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "warning" not in ran.stderr.lower()
    assert ran.stdout.strip()
