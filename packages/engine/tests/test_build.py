import pytest
from spaninfer_engine.build import locate
from spaninfer_engine.errors import ConfigError


def test_a_path_is_a_model_named_after_its_folder_or_file(tmp_path):
    folder, file = tmp_path / "Qwen3-0.6B", tmp_path / "model.gguf"
    folder.mkdir()
    file.touch()

    assert locate(str(folder)) == (folder, "Qwen3-0.6B")
    assert locate(file) == (file, "model")


def test_what_is_neither_a_path_nor_brought_is_refused_and_nothing_is_fetched():
    with pytest.raises(ConfigError, match="models are not downloaded, give the path of one"):
        locate("org/some-model")


def test_a_model_that_a_package_brings_wins_over_a_folder_of_its_name(tmp_path, monkeypatch):
    class Point:
        name = "bundled"

        def load(self):
            return lambda: tmp_path / "inside-a-package"

    (tmp_path / "bundled").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spaninfer_engine.build.entry_points", lambda **_: [Point()])

    assert locate("bundled") == (tmp_path / "inside-a-package", "bundled")
    assert locate("./bundled")[1] == "bundled"
    assert locate("./bundled")[0].resolve() == tmp_path / "bundled"
