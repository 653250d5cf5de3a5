"""The hub's local cache, against what huggingface_hub itself finds in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from random_llama import write_model
from spaninfer_engine.config import EngineConfig
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.load.folders.hub_cache import cache_folder, find_model
from spaninfer_engine.startup.build import build
from spaninfer_engine.startup.model import locate

OLD, NEW = "a" * 40, "b" * 40
VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two revisions of org/some-model, the newer of them being main."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    cache = tmp_path / "cache"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    folder = cache / "models--org--some-model"
    for revision in (NEW, OLD):
        (folder / "snapshots" / revision).mkdir(parents=True)
        (folder / "snapshots" / revision / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(NEW)
    return cache


def test_a_name_is_the_snapshot_that_the_hubs_own_library_would_load(cache: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")

    truth = hub.try_to_load_from_cache("org/some-model", "config.json", cache_dir=cache)

    assert find_model("org/some-model") == Path(truth).parent


def test_names_folders_of_the_cache_and_snapshots_are_found_and_named(cache: Path) -> None:
    folder = cache / "models--org--some-model"

    assert locate("org/some-model") == (folder / "snapshots" / NEW, "org/some-model")
    assert locate(folder) == (folder / "snapshots" / NEW, "org/some-model")
    assert locate(folder / "snapshots" / OLD) == (folder / "snapshots" / OLD, "org/some-model")


def test_a_model_in_the_cache_is_loaded_by_its_name(cache: Path) -> None:
    blobs, snapshot = cache / "blobs", cache / "models--org--tiny" / "snapshots" / NEW
    write_model(blobs, 1, float)
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():  # the cache holds links
        (snapshot / file.name).symlink_to(os.path.relpath(file, snapshot))

    parts = build(EngineConfig(model="org/tiny", backend="reference"))

    assert parts.resolved.name == "org/tiny"
    with open_checkpoint("org/tiny") as checkpoint:
        assert checkpoint.name == "org/tiny"


@pytest.mark.usefixtures("cache")
def test_a_folder_in_the_working_directory_wins_over_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "some-model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    assert find_model("org/some-model") == Path("org/some-model")


@pytest.mark.parametrize("name", ["../x", "/x", "org/../x", "a/b/c", "org/", "", "org\\x"])
def test_what_is_no_name_is_not_looked_for(
    cache: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "models--org--x" / "snapshots").mkdir(parents=True)
    monkeypatch.chdir(cache)  # nothing beside it is called x

    assert find_model(name) in (None, Path())


def test_the_only_snapshot_needs_no_main(cache: Path) -> None:
    only = cache / "models--gpt2" / "snapshots" / OLD
    only.mkdir(parents=True)

    assert locate("gpt2") == (only, "gpt2")


@pytest.mark.parametrize("main", [None, "c" * 40, "../../../etc"])
def test_a_folder_whose_snapshot_is_not_clear_is_refused_with_those_it_has(
    cache: Path, main: str | None
) -> None:
    file = cache / "models--org--some-model" / "refs" / "main"
    file.write_text(main) if main else file.unlink()

    with pytest.raises(ConfigError, match=f"it has {OLD}, {NEW}; .*`hf download org/some-model`"):
        find_model("org/some-model")


def test_a_name_that_is_nowhere_is_answered_with_the_way_to_it_and_the_nearest(
    cache: Path,
) -> None:
    with pytest.raises(ConfigError) as caught:
        locate("org/some-modle")

    assert "an engine downloads nothing" in str(caught.value)
    assert f"not in the cache {cache} (there is org/some-model)" in str(caught.value)
    assert "`hf download org/some-modle`" in str(caught.value)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"HF_HOME": "{0}/home"},
        {"HF_HUB_CACHE": "{0}/hub", "HF_HOME": "{0}/home"},
        {"HUGGINGFACE_HUB_CACHE": "{0}/older"},
        {"XDG_CACHE_HOME": "{0}/xdg"},
    ],
)
def test_the_cache_is_where_the_hubs_own_library_has_it(
    said: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    ask = "import json, huggingface_hub.constants as c; print(json.dumps(c.HF_HUB_CACHE))"

    told = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)

    assert cache_folder() == Path(json.loads(told.stdout))
