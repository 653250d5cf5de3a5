"""Built wheels: complete, and installable alone with only their declared dependencies."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import httpx
import pytest
from filelock import FileLock
from mounts import run_beside
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PINS = ("--constraint", ROOT / "constraints.txt")
FOLDERS = {
    tomllib.loads(toml.read_text(encoding="utf-8"))["project"]["name"]: toml.parent
    for toml in sorted([*ROOT.glob("*/pyproject.toml"), *ROOT.glob("packages/*/pyproject.toml")])
}

# What modules of packages that have extras may fail to find where none was asked for.
OPTIONAL = {
    "PIL",
    "llguidance",
    "torch",
    "transformers",
    "cuda",
    "span_attention",
    "spaninfer_kernels_cuda",
    "spaninfer_kernel_launch",
    "spaninfer_multimodal",
}

# Imports every module of a package; prints what was missing and whether torch could be had.
IMPORT_ALL = """
import importlib, importlib.util, json, pkgutil, sys

package = importlib.import_module(sys.argv[1])
missing = {}
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if module.name.endswith(".__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        missing[module.name] = error.name.partition(".")[0]
print(json.dumps({"missing": missing, "torch": importlib.util.find_spec("torch") is not None}))
"""


@dataclass(frozen=True)
class Wheel:
    """A built wheel, and what its metadata says."""

    path: Path
    requires: tuple[str, ...]  # Requires-Dist lines
    licences: tuple[bytes, ...]
    files: frozenset[str]  # but for the metadata


def read_wheel(path: Path) -> Wheel:
    with ZipFile(path) as archive:
        names = archive.namelist()
        meta = next(name for name in names if name.endswith(".dist-info/METADATA"))
        headers = message_from_string(archive.read(meta).decode())
        return Wheel(
            path=path,
            requires=tuple(headers.get_all("Requires-Dist", [])),
            licences=tuple(archive.read(name) for name in names if ".dist-info/licenses/" in name),
            files=frozenset(name for name in names if ".dist-info/" not in name),
        )


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run of the tests, the same for all processes that share them."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Have a folder filled by whichever process asks for it first; the others wait."""
    made = folder.with_suffix(".made")
    with FileLock(folder.with_suffix(".lock")):
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of who failed
            folder.mkdir()
            make(folder)
            made.touch()
    return folder


@pytest.fixture(scope="module")
def wheels(shared: Path) -> dict[str, Wheel]:
    """Every package of the repository, built."""

    def build(out: Path) -> None:
        pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, *FOLDERS.values())

    out = made_once(shared / "wheels", build)
    return {
        name: read_wheel(next(out.glob(f"{name.replace('-', '_')}-[0-9]*.whl"))) for name in FOLDERS
    }


@pytest.fixture(scope="module")
def needed(shared: Path, wheels: dict[str, Wheel]) -> Path:
    """These wheels, and those of all that any of them needs: an index is asked for each once."""
    paths = [wheel.path for wheel in wheels.values()]

    def download(folder: Path) -> None:
        pip("download", "--dest", folder, *PINS, *paths)

    return made_once(shared / "needed", download)


def pip(*arguments: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", FOLDERS)
def test_a_wheel_is_for_every_platform(name: str, wheels: dict[str, Wheel]) -> None:
    assert wheels[name].path.name.endswith("-py3-none-any.whl")


@pytest.mark.parametrize("name", FOLDERS)
def test_a_wheel_holds_every_source_file_and_nothing_else(
    name: str, wheels: dict[str, Wheel]
) -> None:
    source = FOLDERS[name] / "src"

    expected = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert wheels[name].files == expected


@pytest.mark.parametrize("name", FOLDERS)
def test_a_wheel_carries_the_licence_of_the_repository(name: str, wheels: dict[str, Wheel]) -> None:
    assert wheels[name].licences == ((ROOT / "LICENSE").read_bytes(),)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_wheel_names_what_it_needs_and_points_at_no_file(
    name: str, wheels: dict[str, Wheel]
) -> None:
    assert not [line for line in wheels[name].requires if "@" in line]


@pytest.fixture(scope="module")
def installed(shared: Path, wheels: dict[str, Wheel], needed: Path) -> Callable[[str], Path]:
    """Where the programs are of an environment of a package and what it declares: one of each.

    It begins as that of a package which this one declares, where there is one: what both need is
    installed, and byte-compiled by the first import, once.
    """
    found = ("--no-index", "--find-links", needed)

    def install(name: str) -> Path:
        def make(folder: Path) -> None:
            if (below := largest_below(name, wheels)) is not None:
                install(below)
                link_tree(shared / f"environment-{below}", folder)
            else:
                venv.create(folder, with_pip=False)
            python = ("--python", scripts_of(folder) / "python")
            pip(*python, "install", "--no-compile", *found, wheels[name].path)

        return scripts_of(made_once(shared / f"environment-{name}", make))

    return install


def link_tree(source: Path, folder: Path) -> None:
    """Fill a folder with links to the files of another, in which other processes may import."""
    being_written = shutil.ignore_patterns("*.pyc.*")
    links = {"copy_function": os.link, "symlinks": True, "dirs_exist_ok": True}
    shutil.copytree(source, folder, ignore=being_written, **links)


def largest_below(name: str, wheels: dict[str, Wheel]) -> str | None:
    """Return that of our packages which `name` declares that itself needs most of ours."""

    def ours(package: str) -> set[str]:
        wanted = [Requirement(line) for line in wheels[package].requires]
        direct = {line.name for line in wanted if line.marker is None} & wheels.keys()
        return direct.union(*map(ours, direct))

    return max(sorted(ours(name)), key=lambda below: len(ours(below)), default=None)


def scripts_of(environment: Path) -> Path:
    """Where the programs of an environment are."""
    return Path(sysconfig.get_path("scripts", "venv", vars={"base": str(environment)}))


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_a_wheel_installs_alone_and_imports_without_torch(
    name: str, wheels: dict[str, Wheel], installed: Callable[[str], Path]
) -> None:
    scripts = installed(name)
    has_extras = any("extra ==" in line for line in wheels[name].requires)

    for package in sorted({file.partition("/")[0] for file in wheels[name].files}):
        done = subprocess.run(
            [scripts / "python", "-I", "-c", IMPORT_ALL, package], capture_output=True, text=True
        )

        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert not found["torch"]
        missing = found["missing"]
        assert set(missing.values()) <= (OPTIONAL if has_extras else set()), missing


@pytest.fixture(scope="module")
def warmed(shared: Path, installed: Callable[[str], Path]) -> Path:
    """A folder with what the Dockerfile's command `printed`, and the `cache` that it filled."""

    def warm(folder: Path) -> None:
        assert WARM is not None
        name, *arguments = shlex.split(WARM[1])
        done = subprocess.run(
            [installed("spaninfer") / name, *arguments],
            cwd=folder,
            env=os.environ | {"NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": ""},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        (folder / "printed").write_text(done.stdout, encoding="utf-8")

    return made_once(shared / "warmed", warm)


@pytest.mark.slow
def test_the_command_finds_the_model_that_came_as_a_wheel(warmed: Path) -> None:
    printed = (warmed / "printed").read_text(encoding="utf-8")

    assert printed.startswith("Once upon a time")
    assert len(printed) > len("Once upon a time") + 8


@pytest.mark.slow
def test_the_server_of_the_wheels_answers_where_there_is_no_torch(
    installed: Callable[[str], Path],
    warmed: Path,
    serve: Callable[..., AbstractContextManager[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Packages of an environment without torch, which a test above looks for there.

    The cache is a copy: it is the image's test that says whether anything lacks in it.
    """
    cache = shutil.copytree(warmed / "cache", tmp_path / "cache")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache))
    with serve(python=installed("spaninfer") / "python") as server:
        page = httpx.get(server.url)
        answer = server.client().chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Tell me a story"}], max_tokens=8
        )
        status = server.stop()

    assert "<html" in page.text
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 8
    assert status == 0, "".join(server.lines)


# ---- the image ----------------------------------------------------------------------------------

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
WARM = re.search(r"^RUN (spaninfer .*)$", DOCKERFILE, re.MULTILINE)
COMMAND = re.search(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)

CLIENT = """
import json, re, subprocess, sys, urllib.request
command = [sys.executable, "-m", "spaninfer", *json.loads(sys.argv[1]), "--port", "0"]
with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
    for line in server.stderr:
        print(line, end="", file=sys.stderr)
        if found := re.search(r"OpenAI API  http://\\S+:(\\d+)/v1", line):
            break
    request = urllib.request.Request(
        f"http://127.0.0.1:{found[1]}/v1/completions",
        json.dumps({"prompt": "Once", "max_tokens": 8, "temperature": 0.8, "top_p": 0.9}).encode(),
        {"Authorization": "Bearer SECRET", "Content-Type": "application/json"},
    )
    print(urllib.request.urlopen(request).read().decode())
    server.terminate()
    server.stderr.read()
"""


def test_the_image_is_made_of_the_packages_that_the_command_needs(
    wheels: dict[str, Wheel],
) -> None:
    needed, todo = set(), {"spaninfer"}
    while todo:
        needed |= todo
        wanted = [Requirement(line) for name in todo for line in wheels[name].requires]
        todo = {line.name for line in wanted if line.marker is None} & FOLDERS.keys() - needed

    needed.add("spaninfer-multimodal")  # what the bundled model sees with
    named = re.findall(r" \./([\w/-]+)", DOCKERFILE)

    assert sorted(named) == sorted(FOLDERS[name].relative_to(ROOT).as_posix() for name in needed)


@pytest.mark.slow
def test_what_the_image_does_works_where_its_user_may_write_nothing(
    installed: Callable[[str], Path], warmed: Path, tmp_path: Path
) -> None:
    """The commands of the Dockerfile, in an environment of the wheels instead of an image."""
    assert COMMAND is not None
    scripts, cache, temporary = installed("spaninfer"), warmed / "cache", tmp_path / "tmp"
    temporary.mkdir()

    served = run_beside(
        ["-c", CLIENT, COMMAND[1]],
        {
            "HOME": None,
            "NUMBA_CACHE_DIR": str(cache),
            "PYTHONPATH": "",
            "SPANINFER_API_KEY": "SECRET",
            "TMPDIR": str(temporary),
        },
        python=scripts / "python",
        read_only=(scripts.parent, cache, temporary),
        as_stranger=True,
    )

    assert served.returncode == 0, served.stderr
    assert "warning" not in served.stderr.lower()
    assert json.loads(served.stdout)["usage"]["completion_tokens"] == 8
