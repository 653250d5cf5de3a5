"""Fixtures and hooks of all packages' tests: which tests run here, and the path of real data."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Generator, Iterator
from inspect import isfunction
from pathlib import Path

import pytest

BESIDE_THE_CHECKOUT = Path(__file__).resolve().parent.parent / "shared" / "data"

# Tests read the variable only, and skip where the file they want is not in that folder.
os.environ.setdefault("SPANINFER_TEST_DATA", str(BESIDE_THE_CHECKOUT))

# Tests start hundreds of interpreters: without byte code each compiles all that it imports of us.
# What pytest makes of the tests themselves takes 12 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Numba colours what it says of each template that does not fit, though nobody is shown it: that is
# a twentieth of the time in which a kernel is compiled.
os.environ["NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING"] = "1"

# Where these are set, rich and typer colour what programs write to pipes and files as well.
for name in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TTY_COMPATIBLE"):
    os.environ.pop(name, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --cases, for tools under which a test takes a hundred times as long."""
    parser.addoption(
        "--cases",
        type=int,
        metavar="N",
        help="run at most N cases of each test, evenly chosen, and none with cupy",
    )


# Objects that must have come before Python's collector looks at them: with its own 700, it took 8 %
# of the time of kernels' and models' tests. An engine that runs has twice as many (`gc_freeze`).
YOUNG = 10_000


# A worker that has grown by so much since it last did so looks for garbage: models lie in circles,
# and among a million objects that stay, Python's collector hardly ever comes to old ones by itself.
GROWTH = 256 << 20


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage meanwhile: thousands of tests come, and all of them stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(YOUNG)
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the collector from what stays; watch how this process grows, where that can be read."""
    config.pluginmanager.register(FrozenAgain())
    if sys.platform == "linux":
        config.pluginmanager.register(MemoryWatch())


class FrozenAgain:
    """Freezes all objects again behind a test that thawed them, as closing an engine does.

    Otherwise every full collection behind the first engine goes over all tests and modules, a
    million objects, for 0.6 to 2 s.
    """

    def __init__(self) -> None:
        self._is_thawed = False
        thaw = gc.unfreeze

        def unfreeze() -> None:
            self._is_thawed = True
            thaw()

        gc.unfreeze = unfreeze

    def pytest_runtest_logfinish(self) -> None:
        """Freeze them, garbage among them: `MemoryWatch` comes for that."""
        if self._is_thawed:
            self._is_thawed = False
            gc.freeze()


class MemoryWatch:
    """Gives memory back to the system between two tests whenever it grew by `GROWTH`."""

    def __init__(self) -> None:
        self._held = resident_bytes()
        # glibc's: the system has pages back that lie between others in use.
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)

    def pytest_runtest_logfinish(self) -> None:
        """Collect garbage and give back what it held, if it is time: first among young objects."""
        now = resident_bytes()
        self._held = min(self._held, now)
        if now <= self._held + GROWTH:
            return
        self._collect()
        if resident_bytes() > self._held + GROWTH // 2:
            gc.unfreeze()
            self._collect()
        self._held = resident_bytes()

    def _collect(self) -> None:
        gc.collect()
        self._trim(0)


def resident_bytes() -> int:
    """Return how much memory this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Draw up no case of a test that is left out by a mark of its own, or of its module.

    All workers collect all tests: the cases of kernels on GPUs are a third of them.
    """
    if not isfunction(obj):
        return None
    marks = (*getattr(obj, "pytestmark", ()), *collector.iter_markers())
    return [] if left_out(collector.config).intersection(mark.name for mark in marks) else None


def left_out(config: pytest.Config) -> set[str]:
    """Return marks whose tests do not run: a `sweep` runs only where `-m` names it."""
    chosen = config.getoption("markexpr")
    out = {"gpu"} if chosen == "not gpu" else set()
    return out if "sweep" in chosen else out | {"sweep"}


@pytest.hookimpl(trylast=True)  # after what -k and -m leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep few cases where asked for; let `gpu` tests step aside where no CUDA device is."""
    if "sweep" in left_out(config):
        swept = dict.fromkeys(item for item in items if item.get_closest_marker("sweep"))
        config.hook.pytest_deselected(items=[*swept])
        items[:] = [item for item in items if item not in swept]
    if (most := config.getoption("--cases")) is not None:
        items[:] = few(items, most)
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not has_cuda_device():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and there is none"))


@pytest.fixture(autouse=True)
def _numbers_of_its_own(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test draws from the RNG of its module does not depend on which ran before it."""
    if (rng := getattr(request.module, "RNG", None)) is None:
        yield
        return
    begin = rng.bit_generator.state
    yield
    rng.bit_generator.state = begin


@pytest.fixture
def own_garbage() -> Iterator[None]:
    """Collections look through what came since: all that other tests left takes a second a time."""
    gc.freeze()
    yield
    gc.unfreeze()


def few(items: list[pytest.Item], most: int) -> list[pytest.Item]:
    """Return at most so many cases of each test: kernels do not know whose arrays they get."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if "cupy" not in item.nodeid:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {item for of_test in cases.values() for item in of_test[:: -(-len(of_test) // most)]}
    return [item for item in items if item in kept]


def has_cuda_device() -> bool:
    """Ask the driver: none of the packages under test, and no framework, is needed for that."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return (
        driver.cuInit(0) == 0
        and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
        and count.value > 0
    )
