import sys
from pathlib import Path

import pytest
from spaninfer_demo import path

# The training scripts are programs in a folder, not a package that is installed.
sys.path.insert(0, str(Path(__file__).parents[1] / "train"))


@pytest.fixture(scope="session")
def second_stage(tmp_path_factory):
    """A folder as the second stage writes it, but for the weights."""
    pytest.importorskip("torch")
    pytest.importorskip("spaninfer", reason="scenes are drawn by the package spaninfer")
    from vision.export import export_settings, widen_tokenizer
    from vision.model import VISION_SHAPE, TowerShape

    folder, wide = tmp_path_factory.mktemp("seeing"), tmp_path_factory.mktemp("wide")
    widen_tokenizer(path() / "tokenizer.json", wide / "tokenizer.json")
    export_settings(wide / "tokenizer.json", VISION_SHAPE, TowerShape(), folder)
    return folder
