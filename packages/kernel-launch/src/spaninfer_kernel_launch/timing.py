"""GPU time of launches, and the record of it that a benchmark program prints."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from spaninfer_kernel_launch.driver import call_driver, driver
from spaninfer_kernel_launch.gpu import Gpu
from spaninfer_kernel_launch.toolchain import compiler_version


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one launch: the median over replays, the fastest, the slowest."""

    us: float
    fastest_us: float
    slowest_us: float


def time_launches(
    launch: Callable[[int, int], None], gpu: Gpu, *, launches: int = 20, replays: int = 15
) -> Timing:
    """Return the time of one launch inside a CUDA graph of `launches`, each replay timed by events.

    `launch(stream, number)` starts launch number 0, 1, … of the graph: a benchmark that must not
    find its inputs in the L2 cache takes other ones for each number.
    """
    with gpu.current(), new_stream() as stream, captured(stream, launch, launches) as graph:
        times = [us / launches for us in _replay(graph, stream, replays + _WARM_UP)]
    kept = times[_WARM_UP:]
    return Timing(median(kept), min(kept), max(kept))


_WARM_UP = 3


@contextmanager
def new_stream() -> Iterator[int]:
    """Give the handle of a stream of the current context; synchronise with it at the end."""
    bound = driver()
    stream = call_driver(bound.cuStreamCreate, bound.CUstream_flags.CU_STREAM_NON_BLOCKING)
    try:
        yield int(stream)
        call_driver(bound.cuStreamSynchronize, stream)
    finally:
        call_driver(bound.cuStreamDestroy, stream)


@contextmanager
def captured(
    stream: int, launch: Callable[[int, int], None], launches: int = 1
) -> Iterator[Callable[[], None]]:
    """Capture `launches` calls of `launch(stream, number)`; yield their replay on `stream`."""
    bound = driver()
    call_driver(
        bound.cuStreamBeginCapture, stream, bound.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    )
    try:
        for number in range(launches):
            launch(stream, number)
    finally:
        graph = call_driver(bound.cuStreamEndCapture, stream)
    ready = call_driver(bound.cuGraphInstantiate, graph, 0)
    try:
        yield lambda: call_driver(bound.cuGraphLaunch, ready, stream)
    finally:
        call_driver(bound.cuGraphExecDestroy, ready)
        call_driver(bound.cuGraphDestroy, graph)


def _replay(replay: Callable[[], None], stream: int, times: int) -> list[float]:
    """Return the microseconds of each of `times` replays."""
    bound = driver()
    events = [call_driver(bound.cuEventCreate, 0) for _ in range(2 * times)]
    for before, after in zip(events[::2], events[1::2], strict=True):
        call_driver(bound.cuEventRecord, before, stream)
        replay()
        call_driver(bound.cuEventRecord, after, stream)
    call_driver(bound.cuStreamSynchronize, stream)
    taken = [
        1e3 * call_driver(bound.cuEventElapsedTime, before, after)
        for before, after in zip(events[::2], events[1::2], strict=True)
    ]
    for event in events:
        call_driver(bound.cuEventDestroy, event)
    return taken


def record(gpu: Gpu, timing: Timing, *, bytes_moved: int, **sizes: object) -> str:
    """Return a measurement as one JSON line: sizes, times, gigabytes per second, circumstances.

    `bytes_moved` is the least that a launch must read and write; `sizes` describe the measurement.
    """
    return json.dumps(
        {
            **sizes,
            **{name: round(us, 2) for name, us in asdict(timing).items()},
            "gbps": round(bytes_moved / timing.us / 1e3, 1),
            **circumstances(gpu),
        }
    )


def circumstances(gpu: Gpu) -> dict[str, object]:
    """Return device, versions, commit and time, which make records comparable."""
    return {
        "device": gpu.name,
        "driver": call_driver(driver().cuDriverGetVersion),
        "nvrtc": ".".join(map(str, compiler_version())),
        "python": platform.python_version(),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str:
    """Return the commit of the checkout this file is in; empty outside of one."""
    folder = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()
