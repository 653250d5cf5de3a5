"""Build, test and check every package.

The packages describe themselves in their pyproject.toml; this file only walks them. Siblings are
installed by path, all in one pip command, so that no index is asked for a name of ours.
"""

from __future__ import annotations

import ast
import hashlib
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import nox
from packaging.requirements import Requirement

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"  # pip's configuration says where packages come from
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "layers", "docs", "tests"]

ROOT = Path(__file__).parent
HOMES = ("packages/*", "kernels-cuda", "kernels-cpu", "span-attention", "multimodal")
PINS = ("--constraint", str(ROOT / "constraints.txt"))
UMBRELLA = "spaninfer"
KERNELS = ("span-attention", "spaninfer-kernels-cuda")

VENV = ROOT / ".venv"
VENV_BIN = VENV / ("Scripts" if sys.platform == "win32" else "bin")

# A server is given this long to answer what it has begun, after Ctrl-C: its own limit is 30 s, and
# 20 s later it ends what has not ended.
DRAIN_S = 60.0

# The newest of each, which no file pins: the session says whether they work with what we have.
CLIENTS = (
    *("openai", "anthropic", "litellm", "langchain-openai", "langchain-anthropic"),
    *("llama-index-llms-openai-like", "llm"),
)

# A schema cannot say what a model's context takes, nor which parameters exclude each other: so a
# valid body may be refused (400), and that check is left out.
SCHEMATHESIS = (
    *("--exclude-checks", "positive_data_acceptance"),
    *("--max-examples", "20", "--continue-on-failure"),
    *("--request-timeout", "60"),  # an answer may take all of a context
)
# Each phase has its own limit: two cores need more than ten minutes for all cases of coverage, and
# the phases after it would send nothing.
PHASES, STATEFUL = ("examples", "coverage", "fuzzing"), "stateful"
PHASE_S = "60"
TEXTS = "^/(v[12]/)?(embeddings|rerank|score|classify)"
OPERATIONS = (
    "^/(pause|resume|continue|is_|drain|abort|reset|flush|log_level|server_info|get_|start_|stop_|"
    "sleep|wake_up|release_|update_)"
)
FUZZED = ("requests", "operations", "embed", "classify")

# Tests compute small things: threads of BLAS and torch would only wait for each other.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


# ---- the packages -----------------------------------------------------------------------------


def discover() -> dict[str, Path]:
    """Map each package name to its folder, lowest layer first."""
    folders = {}
    for home in HOMES:
        for toml in sorted(ROOT.glob(f"{home}/pyproject.toml")):
            folders[describe(toml.parent)["project"]["name"]] = toml.parent
    order = TopologicalSorter(
        {name: siblings(runtime(folder), folders) - {name} for name, folder in folders.items()}
    )
    return {name: folders[name] for name in order.static_order()}


def describe(folder: Path) -> dict[str, Any]:
    """Return the pyproject.toml of a package."""
    return nox.project.load_toml(folder / "pyproject.toml")


def runtime(folder: Path) -> list[str]:
    """Return what the package in `folder` declares for its users, extras included."""
    project = describe(folder)["project"]
    extras = project.get("optional-dependencies", {}).values()
    return [*project["dependencies"], *(line for extra in extras for line in extra)]


def for_tests(folder: Path) -> tuple[str, ...]:
    """Return what the tests of the package in `folder` declare."""
    return nox.project.dependency_groups(describe(folder), "test")


def siblings(requirements: Iterable[str], known: Iterable[str]) -> set[str]:
    """Return the names among `requirements` that are packages of this repository."""
    return {Requirement(line).name for line in requirements}.intersection(known)


PACKAGES = discover()
SOURCES = [str(folder / "src") for folder in PACKAGES.values()]
EVERY_PACKAGE = nox.parametrize("package", list(PACKAGES), ids=list(PACKAGES))


def below(package: str) -> list[str]:
    """Return the packages that `package` and its tests stand on, itself last."""
    needed: set[str] = set()
    todo = {package} | siblings(for_tests(PACKAGES[package]), PACKAGES)
    while todo:
        needed |= todo
        todo = {
            name for above in todo for name in siblings(runtime(PACKAGES[above]), PACKAGES)
        } - needed
    return [name for name in PACKAGES if name in needed]


# ---- installing -------------------------------------------------------------------------------


def located(requirements: Iterable[str]) -> Iterator[str]:
    """Yield pip's arguments for `requirements`, packages of this repository by their folders."""
    for line in requirements:
        wanted = Requirement(line)
        if wanted.name not in PACKAGES:
            yield line
        elif wanted.marker is None or wanted.marker.evaluate():
            extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
            yield from ("--editable", f"{PACKAGES[wanted.name]}{extras}")


def tools(group: str) -> tuple[str, ...]:
    """Return a group of the root's pyproject.toml."""
    return nox.project.dependency_groups(describe(ROOT), group)


def install_here(session: nox.Session, *requirements: str, python: str = "python") -> None:
    """Install `requirements`, those of this repository editable and all in one pip command.

    Python compiles what it imports: pip would compile all of it, by one core, which took a minute.
    On all cores it takes 28 CPU-seconds, of which collecting the tests saves 17 (EPYC Zen 4).
    """
    pip = (python, "-m", "pip", "install", "--no-compile", *PINS)
    session.run_install(*pip, *tools("backend"), silent=True, external=True)
    # With one build environment per package this would take 35 s instead of 5.
    wanted = ("--no-build-isolation", *located(requirements))
    session.run_install(*pip, *wanted, silent=True, external=True)


def make_venv(session: nox.Session, extras: Iterable[str] = ()) -> None:
    """Install every package into .venv, the umbrella with `extras`."""
    session.log("one to three minutes, most of them without a word of pip's")
    session.run(sys.executable, "-m", "virtualenv", "--quiet", str(VENV), external=True)
    asked = [f"{UMBRELLA}[{extra}]" for extra in extras]
    install_here(session, *PACKAGES, *asked, python=str(VENV_BIN / "python"))


# ---- using ------------------------------------------------------------------------------------


@nox.session
def demo(session: nox.Session) -> None:
    """Install what the bundled model needs, then serve it: playground at /, API at /v1."""
    install_here(session, *below(UMBRELLA), "spaninfer-multimodal")  # it looks at pictures
    session.run("spaninfer", "serve", *session.posargs, interrupt_timeout=DRAIN_S)


@nox.session(venv_backend="none")
def install(session: nox.Session) -> None:
    """Install every package into .venv; extras follow two dashes: nox -s install -- cuda vlm."""
    make_venv(session, session.posargs)
    session.log(f"ready: {VENV_BIN / 'spaninfer'} serve, chat, --help")


@nox.session(venv_backend="none")
def serve(session: nox.Session) -> None:
    """Serve a model from .venv: nox -s serve -- MODEL, and any option of `spaninfer serve`."""
    command = VENV_BIN / "spaninfer"
    if not command.exists():
        make_venv(session)
    session.run(str(command), "serve", *session.posargs, external=True, interrupt_timeout=DRAIN_S)


# ---- other projects' programs against a server --------------------------------------------------


@contextmanager
def served(session: nox.Session, *arguments: str, command: str = "spaninfer") -> Iterator[str]:
    """Run a command of .venv that serves at --port inside of the block, and give its URL."""
    if not (VENV_BIN / "spaninfer").exists():
        make_venv(session)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([VENV_BIN / command, *arguments, "--port", str(port)])
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for_health(session, process, url)
        yield url
    finally:
        process.terminate()
        process.wait(DRAIN_S)


def wait_for_health(session: nox.Session, process: subprocess.Popen[bytes], url: str) -> None:
    """Return when a server answers; the first start compiles for a minute."""
    while process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{url}/health"):
            return
        time.sleep(0.2)
    session.error(f"the server ended with {process.returncode}")


@nox.session
def clients(session: nox.Session) -> None:
    """Have clients and frameworks of others, newest versions, talk to a server: see clients/."""
    session.install("pytest", *CLIENTS)
    # Their environment knows nothing of ours: no conftest.py above the folder is read.
    alone = ("--confcutdir", "clients", "--rootdir", "clients", "-c", os.devnull)
    template = ("--chat-template", "clients/tools.jinja", "--tool-parser", "hermes")
    with (
        served(session, "serve", "--quiet") as url,
        served(session, "serve", "--quiet", *template) as tools,
        served(session, "clients/encoders.py", "embed", command="python") as texts,
    ):
        urls = {"SPANINFER_URL": url, "SPANINFER_TOOLS_URL": tools, "SPANINFER_TEXTS_URL": texts}
        session.run("pytest", *alone, "clients", *session.posargs, env=urls)


@nox.session
@nox.parametrize("part", FUZZED, ids=FUZZED)
def fuzz(session: nox.Session, part: str) -> None:
    """Send what /openapi.json allows, and what it does not, by schemathesis; it finds nothing."""
    session.install("schemathesis")

    def run(url: str, phases: Iterable[str], *options: str) -> None:
        chosen = (*SCHEMATHESIS, "--max-time", PHASE_S, *options, *session.posargs)
        for phase in phases:
            session.run("schemathesis", "run", "--phases", phase, *chosen, f"{url}/openapi.json")

    if part in ("embed", "classify"):
        with served(session, "clients/encoders.py", part, command="python") as url:
            run(url, PHASES, "--include-path-regex", TEXTS)
        return
    key, folder = secrets.token_hex(16), Path(session.create_tmp()).resolve()
    admins = folder / "admins"
    admins.write_text(hashlib.sha256(key.encode()).hexdigest())
    template = ("--chat-template", "clients/tools.jinja", "--tool-parser", "hermes")
    folders = ("--profile-dir", str(folder), "--weights-folder", str(folder))
    operated = ("--admin-key-file", str(admins), *folders)
    with served(session, "serve", "--quiet", "--max-len", "512", *template, *operated) as url:
        if part == "requests":
            others = f"{TEXTS}|{OPERATIONS}"
            run(url, (*PHASES, STATEFUL), "--exclude-path-regex", others)
        else:
            of_admin = ("--header", f"Authorization: Bearer {key}")
            run(url, PHASES, "--include-path-regex", OPERATIONS, *of_admin)


# ---- checking ---------------------------------------------------------------------------------


@nox.session(tags=["check"])
def tests(session: nox.Session) -> None:
    """Run every test of the repository in one environment; arguments go to pytest.

    Without any, those for a GPU come first, if there is one: one by one, since an engine takes what
    memory of it is free. The others share the cores.
    """
    wanted = [line for folder in PACKAGES.values() for line in for_tests(folder)]
    install_here(session, *PACKAGES, *wanted, *tools("test"))
    if session.posargs:
        session.run("pytest", *session.posargs, env=ONE_THREAD)
        return
    workers = ("--numprocesses", str(workers_of_tests()), "--dist", "worksteal")
    if has_gpu(session):
        session.run("pytest", "-m", "gpu", env=ONE_THREAD)
    else:
        session.log("no CUDA device here: the tests that are marked gpu are left out")
    # -rs: the end of the log says why some are skipped
    session.run("pytest", "-m", "not gpu", "-rs", *workers, env=ONE_THREAD)


def has_gpu(session: nox.Session) -> bool:
    """Ask what the tests ask; collecting them only to skip them would take half a minute."""
    program = "import conftest; print(conftest.has_cuda_device())"
    return str(session.run("python", "-c", program, silent=True)).split()[-1:] == ["True"]


def workers_of_tests() -> int:
    """Return one more than this process may use cores: some wait for programs that they started.

    At most 8, since each takes 1 to 2 GB of memory.
    """
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(usable + 1, 8)


@nox.session
@EVERY_PACKAGE
def test(session: nox.Session, package: str) -> None:
    """Test one package in an environment that holds only what it declares."""
    install_here(session, *below(package), *for_tests(PACKAGES[package]))
    session.chdir(PACKAGES[package])
    session.run("pytest", *session.posargs, env=ONE_THREAD)


@nox.session(tags=["check"])
def lint(session: nox.Session) -> None:
    """Check format, style and types of the whole tree."""
    install_here(session, *PACKAGES, f"{UMBRELLA}[torch]", *tools("lint"))
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy", "noxfile.py", "conftest.py")
    session.run("mypy", *SOURCES, env={"MYPYPATH": os.pathsep.join(SOURCES)})


@nox.session(tags=["check"])
def layers(session: nox.Session) -> None:
    """Prove that imports only point down (contracts: pyproject.toml)."""
    session.install(*PINS, *tools("layers"))
    # The imports are read, not run: the sources are enough, and nothing of them is installed.
    session.run("lint-imports", env={"PYTHONPATH": os.pathsep.join(SOURCES)})
    doors = "tests/source/test_doors.py"
    session.run("pytest", "--confcutdir", "tests/source", "-c", os.devnull, doors)


@nox.session(name="compile")
def compile_kernels(session: nox.Session) -> None:
    """Compile every variant of every CUDA kernel for every architecture; a spill is an error."""
    wanted = [line for package in KERNELS for line in (package, *for_tests(PACKAGES[package]))]
    install_here(session, *below(KERNELS[0]), *below(KERNELS[1]), *wanted)
    modules = [package.replace("-", "_") for package in KERNELS]
    session.run(
        "python", "-m", "spaninfer_kernel_launch.compile_report", *modules, *session.posargs
    )


@nox.session(venv_backend="none")
def sanitize(session: nox.Session) -> None:
    """Run few cases of each kernel test under compute-sanitizer; needs a GPU, and its toolkit."""
    tests = [str(PACKAGES[package] / "tests") for package in KERNELS]
    pytest = (sys.executable, "-m", "pytest", "-m", "gpu", "--cases", "2")
    # Looking for races takes seconds per row of logits: one test of sampling has them all.
    few = ("-k", "not test_sample.py or however_many_blocks_share_a_row")
    for tool, chosen in (("memcheck", ()), ("racecheck", few)):
        # cuda-python asks the driver for functions that it may not have, and minds no refusal.
        check = ("compute-sanitizer", "--tool", tool, "--report-api-errors", "no")
        stop = ("--error-exitcode", "1")
        session.run(*check, *stop, *pytest, *chosen, *session.posargs, *tests, external=True)


@nox.session(tags=["check"])
def docs(session: nox.Session) -> None:
    """Build the documentation into site/, warnings being errors."""
    session.install(*PINS, *tools("docs"))
    session.run("mkdocs", "build", "--strict", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build wheel and sdist of every package into dist/; names choose: nox -s build -- NAME."""
    unknown = set(session.posargs) - PACKAGES.keys()
    if unknown:
        session.error(f"no package is called {', '.join(unknown)}; there are {', '.join(PACKAGES)}")
    session.install(*PINS, "build", *tools("backend"))
    for package in session.posargs or PACKAGES:
        # The backend is that of this environment: ten others would take longer than the wheels.
        made = ("--no-isolation", "--outdir", str(ROOT / "dist"), str(PACKAGES[package]))
        session.run("python", "-m", "build", *made)


@nox.session(venv_backend="none")
def sizes(session: nox.Session) -> None:
    """Print the longest files and functions, as something to look at; it fails nothing."""
    files, functions = [], []
    for folder in PACKAGES.values():
        for path in sorted(folder.glob("src/**/*.py")):
            text, place = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
            files.append((text.count("\n"), place))
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    assert node.end_lineno is not None, "ast.parse sets it"
                    lines = node.end_lineno - node.lineno + 1
                    functions.append((lines, f"{place}:{node.lineno} {node.name}"))
    for title, rows in (("files", files), ("functions", functions)):
        session.log(f"the longest {title} of {len(rows)}, in lines:")
        for lines, place in sorted(rows, reverse=True)[:15]:
            print(f"{lines:6} {place}")


if __name__ == "__main__":
    nox.main()
