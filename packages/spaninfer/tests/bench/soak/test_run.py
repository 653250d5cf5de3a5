import pytest
from spaninfer.bench.soak import ordinary
from spaninfer.bench.soak.run import measure_soak
from spaninfer_engine import ConfigError


@pytest.mark.slow
def test_a_short_soak_loses_no_ordinary_request_and_leaves_nothing_held(monkeypatch):
    monkeypatch.setattr(ordinary, "CLIENTS", 4)

    record = measure_soak(["demo"], {"long_bodies", "priorities"}, 2.0, 1.0, print)

    for phase in (record["alone"], record["attacked"]):
        assert phase["requests"]["answered"] == phase["requests"]["sent"] > 0
        assert phase["first_token_s"]["max"] <= phase["whole_s"]["max"]
    assert record["attacks"]["priorities"]["refused"] >= 8
    assert record["attacks"]["long_bodies"]["sent"] >= 16
    assert record["left"] == {"running": 0, "waiting": 0, "spans": 0}


def test_a_server_that_does_not_start_says_why():
    with pytest.raises(ConfigError, match=r"did not start[\s\S]*nowhere"):
        measure_soak(["nowhere"], set(), 1.0, 1.0, print)
