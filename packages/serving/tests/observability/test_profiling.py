"""Profiles started and stopped by operators."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from api_servers import serving
from spaninfer_engine import ConfigError, Engine
from spaninfer_serving import Settings
from spaninfer_serving.admission.keys import hash_of
from spaninfer_serving.observability import profiling

pytest.importorskip("spaninfer_kernels_cpu")
ADMIN = {"admin_hashes": (hash_of("root"),)}
NUM_TOKENS = 100
BODY = {"prompt": "x", "max_tokens": NUM_TOKENS, "ignore_eos": True}


@pytest.fixture(scope="module")
def cpu_engine(folder) -> Iterator[Engine]:
    with Engine(folder, backend="cpu", memory=1 << 22) as engine:
        yield engine


@contextmanager
def client_of(address):
    url = "http://{}:{}".format(*address)
    with httpx.Client(
        base_url=url, headers={"Authorization": "Bearer root"}, timeout=120
    ) as client:
        yield client


def refused(answer):
    return answer.status_code, answer.json()["error"]["code"]


def measure(client, folder):
    """Have an answer measured; return what the file says."""
    assert client.post("/start_profile").json() == {"status": "ok"}
    assert refused(client.post("/start_profile")) == (409, "profile_under_way")
    assert client.post("/v1/completions", json=BODY).status_code == 200
    name = client.post("/stop_profile").json()["file"]
    assert refused(client.post("/stop_profile")) == (409, "no_profile")
    assert [each.name for each in folder.iterdir()] == [name]
    return json.loads((folder / name).read_text())


def check(operators):
    # Steps that not all threads saw from begin to end are left out: of eight all, when it was busy.
    assert {each["steps"] for each in operators} <= set(range(1, NUM_TOKENS + 1))
    assert any("gemm" in each["operator"] for each in operators)


def test_what_was_computed_between_start_and_stop_is_written(live, cpu_engine, tmp_path):
    running = live(cpu_engine, profile_dir=tmp_path, **ADMIN)
    with client_of(running.address) as client:
        check(measure(client, tmp_path))


@pytest.mark.slow  # processes start in 2 to 5 s
def test_with_api_servers_it_is_the_engines_process_that_is_measured(cpu_engine, tmp_path):
    with (
        serving(cpu_engine, drain_s=0, profile_dir=tmp_path, **ADMIN) as running,
        client_of(running.address) as client,
    ):
        check(measure(client, tmp_path))


def test_a_profile_that_nobody_stops_ends_by_itself(live, cpu_engine, tmp_path, monkeypatch, until):
    monkeypatch.setattr(profiling, "MAX_PROFILE_S", 0.05)
    running = live(cpu_engine, profile_dir=tmp_path, **ADMIN)
    with client_of(running.address) as client:
        client.post("/start_profile")
        until(lambda: list(tmp_path.iterdir()))
        name = client.post("/stop_profile").json()["file"]
        assert client.post("/start_profile").status_code == 200
        second = client.post("/stop_profile").json()["file"]

    assert {each.name for each in tmp_path.iterdir()} == {name, second}


def test_a_profile_that_cannot_be_written_says_so_and_the_next_one_can(live, cpu_engine, tmp_path):
    folder = tmp_path / "profiles"
    folder.mkdir()
    with client_of(live(cpu_engine, profile_dir=folder, **ADMIN).address) as client:
        client.post("/start_profile")
        folder.rmdir()
        failed = client.post("/stop_profile")
        folder.mkdir()
        client.post("/start_profile")
        written = client.post("/stop_profile")

    assert refused(failed) == (507, "not_written")
    assert (folder / written.json()["file"]).is_file()


def test_without_a_folder_there_are_no_profiles_and_no_key_but_an_operators_makes_one(
    live, cpu_engine, tmp_path
):
    with client_of(live(cpu_engine, **ADMIN).address) as client:
        without = client.post("/start_profile")
    with client_of(live(cpu_engine, profile_dir=tmp_path).address) as client:
        nobody = client.post("/start_profile")

    assert refused(without) == (403, "not_supported")
    assert "--profile-dir" in without.json()["error"]["message"]
    assert refused(nobody) == (403, "admin_key_needed")


def test_a_backend_without_a_profiler_is_refused_by_name(live, engine, tmp_path):
    with client_of(live(engine, profile_dir=tmp_path, **ADMIN).address) as client:
        answer = client.post("/start_profile")

    assert answer.status_code == 400
    assert "backend reference has no profiler" in answer.json()["error"]["message"]


def test_a_folder_that_is_not_there_is_refused_at_the_start(tmp_path):
    with pytest.raises(ConfigError, match=r"--profile-dir is .*no such folder"):
        Settings(profile_dir=tmp_path / "nowhere")
