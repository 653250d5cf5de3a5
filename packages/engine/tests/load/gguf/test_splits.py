"""GGUF models in several files, as the gguf package splits them."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_model import write_gguf
from spaninfer_engine.errors import CheckpointError, ConfigError
from spaninfer_engine.load import open_checkpoint


def _split(source: Path, folder: Path) -> list[Path]:
    """Write a GGUF file again, by the package, in files of eight tensors."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama", split_max_tensors=8)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("model-*.gguf"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model in one file."""
    return write_gguf(tmp_path_factory.mktemp("whole") / "model.gguf", {"": "Q8_0"})


def test_the_first_of_several_files_gives_the_whole_model(whole: Path, tmp_path: Path) -> None:
    files = _split(whole, tmp_path)

    with open_checkpoint(files[0]) as split, open_checkpoint(whole) as expected:
        assert len(files) > 2
        assert dict(split.config) == dict(expected.config)
        assert split.reader.names == expected.reader.names
        for name in expected.reader.names:
            np.testing.assert_array_equal(split.reader.read(name), expected.reader.read(name))


def test_another_file_than_the_first_is_refused(whole: Path, tmp_path: Path) -> None:
    second = _split(whole, tmp_path)[1]

    with pytest.raises(ConfigError, match="is file 2 of 3 of a model; give the first"):
        open_checkpoint(second)


def test_a_missing_file_is_named(whole: Path, tmp_path: Path) -> None:
    files = _split(whole, tmp_path)
    files[2].unlink()

    with pytest.raises(CheckpointError, match=r"model-00003-of-00003\.gguf is not beside it"):
        open_checkpoint(files[0])


def test_a_first_file_under_another_name_is_refused(whole: Path, tmp_path: Path) -> None:
    first = _split(whole, tmp_path)[0].rename(tmp_path / "renamed.gguf")

    with pytest.raises(CheckpointError, match=r"its name must end in -00001-of-00003\.gguf"):
        open_checkpoint(first)
