"""The program as a shell starts it: full disks, lack of memory, users without a home."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

MAIN = "from spaninfer.__main__ import main; main()"
LIMITED = f"import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)); {MAIN}"


def started(*arguments, program=MAIN, out=subprocess.PIPE, typed=""):
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        stdout=out,
        stderr=subprocess.PIPE,
        input=typed,
        text=True,
        timeout=600,
    )


def test_a_mistyped_option_of_the_server_points_to_the_command_that_was_typed():
    ran = started("serve", "--prot", "1")

    assert ran.returncode == 2
    assert "Try 'spaninfer serve --help' for help." in ran.stderr
    assert "--port" in ran.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize(
    "command",
    ["--version", "--help", "spec list", "spec show llama", "info", "generate demo Once", "chat"],
)
def test_a_full_disk_behind_the_output_is_one_sentence(command):
    with Path("/dev/full").open("w") as full:
        ran = started(*command.split(), out=full, typed="hello\n")

    assert ran.returncode == 1
    assert ran.stderr.endswith("error: the output cannot be written (No space left on device)\n")
    assert "Traceback" not in ran.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's")
def test_a_limited_address_space_makes_the_cache_smaller():
    ran = started("generate", "demo", "Once upon", "--max-tokens", "3", program=LIMITED)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("Once upon")


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's")
@pytest.mark.parametrize("mebibytes", [250, 450])
@pytest.mark.parametrize(
    "command", ["generate demo Once", "convert demo DIRECTORY", "tune demo", "serve demo --port 0"]
)
def test_an_address_space_that_is_too_small_is_one_sentence(command, mebibytes, tmp_path):
    """Libraries in C++ and Rust would abort where memory ends, before Python is asked."""
    arguments = command.replace("DIRECTORY", str(tmp_path / "converted")).split()

    ran = started(*arguments, program=tight(mebibytes))

    assert ran.returncode == 2, ran.stderr
    assert "Traceback" not in ran.stderr
    said = ran.stderr.splitlines()[-1]
    assert said.startswith("error: the address space of this process is limited (ulimit -v), and ")
    assert said.endswith(" an engine takes 512 MiB at least: raise the limit")


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's")
def test_an_address_space_without_room_for_the_program_itself_is_one_sentence():
    ran = started("generate", "demo", "Once upon", program=tight(1))

    assert ran.returncode == 1, ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stderr.splitlines()[-1].startswith("error: memory ran out")


def tight(mebibytes):
    return TIGHT.replace("MEBIBYTES", str(mebibytes)) + MAIN


TIGHT = """
import resource
from pathlib import Path
import spaninfer.cli
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (MEBIBYTES << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""


def test_more_memory_than_the_machine_has_is_refused(refusal):
    said = refusal("serve", "--port", "0", "--memory", "4096000GiB")

    assert "--memory is 4,096,000.0 GiB, and this machine gives a process" in said


@pytest.mark.parametrize(
    "command",
    [
        ("info", "~no-such-user/model"),
        ("convert", "demo", "~no-such-user/out"),
        ("spec", "check", "~no-such-user/file", "--checkpoint", "~no-such-user/model"),
    ],
    ids=lambda command: command[0],
)
def test_a_home_that_nobody_knows_is_one_sentence(refusal, command):
    assert refusal(*command).startswith("error: ")


def test_a_server_runs_no_code_of_the_folder_that_it_is_started_in(tmp_path):
    for name in ("typer", "fastapi", "numpy", "msgspec"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('code of a model')")

    command = [sys.executable, "-P", "-c", MAIN, "serve", "no/such/model", "--port", "0"]
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert ran.returncode == 2
    assert "code of a model" not in ran.stderr
    assert "no/such/model" in ran.stderr
