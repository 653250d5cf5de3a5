import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from spaninfer.bench import process_usage
from spaninfer.bench.soak import ordinary, run
from spaninfer.bench.soak.ordinary import ordinary_clients
from spaninfer.bench.soak.run import Timing, measure_soak
from spaninfer_engine import ConfigError, EngineUnavailable

NOTHING = {"running": 0, "waiting": 0, "spans": 0, "lost processes": 0}


@pytest.mark.slow
def test_a_short_soak_loses_no_ordinary_request_and_leaves_nothing_held(monkeypatch):
    monkeypatch.setattr(ordinary, "CLIENTS", 4)

    [found] = measure_soak(["demo"], {"long_bodies", "priorities"}, Timing(2.0, 1.0, 1), print)

    for phase in (found.alone, found.attacked):
        requests = phase.waits.tally.summary()
        assert requests["answered"] == requests["sent"] > 0
        assert max(phase.waits.first) <= max(phase.waits.whole)
    assert found.alone.attacks == {}
    for attack in found.attacked.attacks.values():
        assert attack["sent"] > 0
        # On a slow machine two seconds end before the first answer to whoever sends 2 MB at a time.
        assert attack["refused"] + attack["left"] + attack["cut"] == attack["sent"]
    assert found.attacked.cpus["attackers"] > 0
    assert found.held == NOTHING


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_all_processes_of_a_server_are_counted_and_one_that_is_lost_is_told(monkeypatch):
    phases = []

    async def then_look(target, seconds):
        waits = await ordinary_clients(target, seconds)
        [server] = [pid for pid in process_usage.children(os.getpid()) if b"serve" in words(pid)]
        [engine] = process_usage.children(server)
        [below] = process_usage.children(engine)
        phases.append([process_usage.rss_mib(pid, "VmHWM") for pid in (server, engine, below)])
        if len(phases) == 3:  # of the first use, alone, attacked
            os.kill(below, signal.SIGKILL)
            while process_usage.children(engine) in ([], [below]):
                await asyncio.sleep(0.1)
        return waits

    monkeypatch.setattr(ordinary, "CLIENTS", 4)
    monkeypatch.setattr(run, "ordinary_clients", then_look)

    [found] = measure_soak(
        ["demo", "--api-server-count=1"], {"priorities"}, Timing(2.0, 1.0, 1), print
    )

    for phase in (found.alone, found.attacked):
        requests = phase.waits.tally.summary()
        assert requests["answered"] == requests["sent"] > 0
    assert found.alone.peak_mib == pytest.approx(sum(phases[1]), rel=0.02)
    assert found.held == NOTHING | {"lost processes": 1}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_a_server_that_ends_meanwhile_is_no_quiet_one(monkeypatch):
    async def then_end(target, seconds):
        waits = await ordinary_clients(target, seconds)
        for pid in process_usage.children(os.getpid()):
            if b"serve" in words(pid):
                os.kill(pid, signal.SIGKILL)
        return waits

    monkeypatch.setattr(ordinary, "CLIENTS", 2)
    monkeypatch.setattr(run, "ordinary_clients", then_end)

    with pytest.raises(EngineUnavailable, match="ended during the soak, with status -9"):
        measure_soak(["demo"], {"priorities"}, Timing(1.0, 1.0, 1), print)


def words(pid):
    """Return the command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def test_a_server_that_does_not_start_says_why():
    with pytest.raises(ConfigError, match=r"did not start[\s\S]*nowhere"):
        measure_soak(["nowhere"], set(), Timing(1.0, 1.0, 1), print)
