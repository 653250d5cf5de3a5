import pytest
from spaninfer.bench.soak import ordinary
from spaninfer.bench.soak.run import measure_soak
from spaninfer_engine import ConfigError


@pytest.mark.slow
def test_a_short_soak_loses_no_ordinary_request_and_leaves_nothing_held(monkeypatch):
    monkeypatch.setattr(ordinary, "CLIENTS", 4)

    [found] = measure_soak(["demo"], {"long_bodies", "priorities"}, 2.0, 1.0, 1, print)

    for phase in (found.alone, found.attacked):
        requests = phase.waits.tally.summary()
        assert requests["answered"] == requests["sent"] > 0
        assert max(phase.waits.first) <= max(phase.waits.whole)
    assert found.alone.attacks == {}
    assert found.attacked.attacks["priorities"]["refused"] >= 8
    assert found.attacked.attacks["long_bodies"]["sent"] >= 16
    assert found.attacked.cpus["attackers"] > 0
    assert found.held == {"running": 0, "waiting": 0, "spans": 0}


def test_a_server_that_does_not_start_says_why():
    with pytest.raises(ConfigError, match=r"did not start[\s\S]*nowhere"):
        measure_soak(["nowhere"], set(), 1.0, 1.0, 1, print)
