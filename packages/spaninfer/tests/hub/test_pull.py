"""Models by name, from a hub on loopback, through huggingface_hub and the command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import spaninfer_demo
from spaninfer.hub import HubName, cached_models, find_revisions, locate_or_pull, pull
from spaninfer_engine import ConfigError

NAME = "org/tiny"
WEIGHTS = "model.safetensors"
TINY = {file.name: file.read_bytes() for file in Path(spaninfer_demo.path()).iterdir()}


def test_a_model_is_fetched_weights_last_and_nothing_that_is_not_read(hub):
    folder = pull(HubName(NAME))

    assert {file.name: file.read_bytes() for file in folder.iterdir()} == TINY
    assert sorted(hub.fetched()) == sorted(TINY)
    assert hub.fetched()[-1] == WEIGHTS


def test_a_command_fetches_a_name_once_and_then_needs_no_network(hub, call):
    options = ("Once upon", "--temperature", "0", "--max-tokens", "8")

    first = call("generate", NAME, *options)
    asked = len(hub.asked)
    again = call("generate", NAME, *options)
    bundled = call("generate", "demo", *options)

    assert first.exit_code == again.exit_code == 0, first.output
    assert first.stdout == again.stdout == bundled.stdout
    assert len(hub.asked) == asked


def test_fit_fetches_no_weights_and_a_later_command_fetches_them(hub, call):
    planned = call("fit", NAME, "--gpu-memory", "24GiB")

    assert planned.exit_code == 0, planned.output
    assert WEIGHTS not in hub.fetched()
    assert call("generate", NAME, "Once", "--max-tokens", "2").exit_code == 0
    assert hub.fetched()[-1] == WEIGHTS


def test_what_was_interrupted_is_continued(hub):
    hub.cut_after[WEIGHTS] = 11_000_000  # the library writes pieces of 10 MiB

    folder = pull(HubName(NAME))  # the library asks again by itself

    assert (folder / WEIGHTS).read_bytes() == TINY[WEIGHTS]
    ranges = [
        asked for method, path, asked in hub.asked if method == "GET" and path.endswith(WEIGHTS)
    ]
    assert len(ranges) == 2
    assert ranges[1].startswith("bytes=10485760-")


@pytest.mark.usefixtures("hub")
def test_a_model_without_its_weights_is_fetched_to_its_end():
    folder = pull(HubName(NAME))
    (folder / WEIGHTS).resolve().unlink()
    (folder / WEIGHTS).unlink()

    found = locate_or_pull(NAME)

    assert Path(found) == folder
    assert (folder / WEIGHTS).read_bytes() == TINY[WEIGHTS]


def test_a_tag_is_one_file_and_a_revision_a_folder_of_its_own(hub):
    file = locate_or_pull("org/files:Q8_0")
    folder = locate_or_pull(f"{NAME}@v1")
    asked = len(hub.asked)

    assert Path(file).read_bytes() == b"GGUF" * 9
    assert hub.fetched()[0] == "m-Q8_0.gguf"
    assert Path(folder).name == hub.commit(NAME)
    assert (locate_or_pull("org/files:Q8_0"), locate_or_pull(f"{NAME}@v1")) == (file, folder)
    assert len(hub.asked) == asked


def test_a_path_is_never_a_name(hub, tmp_path, monkeypatch):
    (tmp_path / "org" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    assert locate_or_pull(NAME) == NAME
    assert locate_or_pull("demo") == "demo"
    assert hub.asked == []


def refused(name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        pull(HubName.of(name))
    return str(caught.value)


def test_what_cannot_be_read_is_answered_with_the_way_out(hub, monkeypatch):
    hub.gated.add("org/files")

    assert f"gated: accept its terms at {hub.url}/org/files" in refused("org/files:Q8_0")
    assert f"there is no model org/none at {hub.url}" in refused("org/none")
    assert f"{NAME} has no branch, tag or commit 'v9'" in refused(f"{NAME}@v9")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9 cannot be reached (" in refused(NAME)
    assert "HTTPS_PROXY or HF_ENDPOINT (a mirror), or give the path of a folder" in refused(NAME)


@pytest.mark.parametrize("endpoint", ["hub.example", "ftp://hub.example", "/mirror"])
def test_an_address_that_is_none_is_refused_before_anybody_is_asked(hub, monkeypatch, endpoint):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)

    assert refused(NAME).startswith(f"HF_ENDPOINT is {endpoint!r}, which is no address of a hub")
    assert hub.asked == []


def test_a_cache_that_cannot_be_made_is_not_taken_for_the_network(hub, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))

    says = refused(NAME)

    assert hub.asked != []
    assert says.startswith(f"{folder} cannot be written (")
    assert says.endswith("set HF_HOME to another folder")


def test_a_disk_that_is_too_small_is_noticed_before_anything_is_fetched(hub, monkeypatch):
    total = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: total._replace(free=11_000_000))

    says = refused(NAME)

    needed = sum(map(len, TINY.values()))
    assert says.startswith(f"{NAME} takes 0.0 GB ({needed:,} bytes), and 0.0 GB (11,000,000 bytes)")
    assert says.endswith("or set HF_HOME to a larger disk, and repeat the command")
    assert hub.fetched() == []


def test_offline_is_a_sentence(hub):
    env = os.environ | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "spaninfer", "pull", NAME]

    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    assert ran.returncode == 2
    assert "HF_HUB_OFFLINE forbids downloads" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert hub.asked == []


def test_what_is_in_the_cache_is_listed_and_removed(hub, call):
    folder = pull(HubName(NAME))
    pull(HubName("org/files", tag="F16"))

    listed = call("list").stdout
    kept = call("remove", NAME, typed="n\n")
    freed = call("remove", NAME, "--yes")

    assert f"{hub.commit(NAME)[:7]} main" in listed
    assert "24 MB" in listed
    assert kept.exit_code == 1
    assert f"Delete {NAME} from the cache, 24 MB?" in kept.output
    assert freed.stdout == "24 MB freed\n"
    assert not folder.exists()
    assert [model.repo for model in cached_models()] == ["org/files"]
    with pytest.raises(ConfigError, match=r"org/tiny is not in the cache .*; there is org/files"):
        find_revisions(HubName(NAME))
    again = call("remove", NAME)  # which is said before anything is asked
    assert (again.exit_code, again.stdout) == (2, "")
    assert "org/tiny is not in the cache" in again.stderr
