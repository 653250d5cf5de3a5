import json
import struct
import subprocess
import sys
import textwrap
import time
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load.containers.safetensors import read_safetensors
from spaninfer_engine.load.containers.shards import open_index, open_shards


def write(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def test_arrays_come_out_as_the_format_s_own_library_wrote_them(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.standard_normal((3, 5)).astype(np.float32),
        "b": rng.standard_normal((2, 2, 2)).astype(np.float16),
        "c": rng.integers(-9, 9, 7),
        "empty": np.zeros((0, 4), np.float32),
    }
    save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "pt"})

    with open_shards([tmp_path / "model.safetensors"], read_safetensors) as reader:
        assert reader.names == arrays.keys()
        for name, array in arrays.items():
            assert reader.shape(name) == array.shape
            assert reader.dtype(name) == array.dtype
            np.testing.assert_array_equal(reader.read(name), array)


@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        ("BF16", ml_dtypes.bfloat16),
        ("F8_E4M3", ml_dtypes.float8_e4m3fn),
        ("F8_E5M2", ml_dtypes.float8_e5m2),
    ],
)
def test_formats_that_numpy_lacks_come_out_as_ml_dtypes(tmp_path, code, dtype):
    array = np.array([[1.5, -2.0, 0.25]], dtype)
    path = write(
        tmp_path / "m.safetensors", {"w": entry(code, [1, 3], 0, array.nbytes)}, array.tobytes()
    )

    read = open_shards([path], read_safetensors).read("w")

    assert read.dtype == dtype
    np.testing.assert_array_equal(read, array)


def test_an_array_at_an_odd_address_is_readable_and_aligned(tmp_path):
    header = {"x": entry("U8", [3], 0, 3), "y": entry("F32", [2], 3, 11)}
    data = b"abc" + np.array([1, 2], np.float32).tobytes()
    path = write(tmp_path / "m.safetensors", header, data)

    read = open_shards([path], read_safetensors).read("y")

    assert read.flags.aligned
    assert read.tolist() == [1, 2]


def test_arrays_share_memory_with_the_file_and_outlive_the_reader(tmp_path):
    save_file({"w": np.arange(6, dtype=np.float32)}, tmp_path / "m.safetensors")
    reader = open_shards([tmp_path / "m.safetensors"], read_safetensors)

    array = reader.read("w")
    reader.close()
    reader.close()

    assert not array.flags.writeable
    assert not array.flags.owndata
    assert array.tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(CheckpointError, match=r"'w'.*after close"):
        reader.read("w")


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"{", b"", "not JSON"),
        (b"[]", b"", "holds list, expected a JSON object"),
        ({"w": {"dtype": "F32"}}, b"", "'w' needs dtype, shape"),
        ({"w": entry("F5", [1], 0, 4)}, b"abcd", "'w' has dtype F5"),
        ({"w": entry(["F32"], [1], 0, 4)}, b"abcd", r"'w' has dtype \['F32'\]"),
        ({"w": entry("F32", 1, 0, 4)}, b"abcd", "'w' needs dtype, shape"),
        ({"w": entry("F32", "1", 0, 4)}, b"abcd", "'w' has the impossible shape"),
        ({"w": entry("F32", [-1], 0, 4)}, b"abcd", "'w' has the impossible shape"),
        ({"w": entry("F32", [1], 4, 0)}, b"abcd", r"'w' has the offsets \[4, 0\)"),
        ({"w": entry("F32", [2], 0, 4)}, b"abcd", r"'w' of F32\[2\] needs 8 bytes.*hold 4"),
        ({"w": entry("F32", [2], 0, 8)}, b"abcd", "'w' ends at byte 8.*holds 4.*truncated"),
        (
            {"v": entry("U8", [4], 0, 4), "w": entry("U8", [4], 2, 6)},
            b"abcdef",
            "'w' starts at byte 2, expected 4: overlaps",
        ),
        (
            {"v": entry("U8", [2], 0, 2), "w": entry("U8", [2], 4, 6)},
            b"abcdef",
            "'w' starts at byte 4, expected 2: leaves a gap",
        ),
        ({"w": entry("U8", [2], 0, 2)}, b"abcdef", "4 bytes at the end belong to no tensor"),
    ],
)
def test_a_damaged_file_is_refused_naming_file_and_tensor(tmp_path, header, data, message):
    path = write(tmp_path / "broken.safetensors", header, data)

    with pytest.raises(CheckpointError, match=message) as refused:
        open_shards([path], read_safetensors)

    assert "broken.safetensors" in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"1234", struct.pack("<Q", 999) + b"{}"])
def test_a_file_shorter_than_its_header_is_refused(tmp_path, content):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(content)

    with pytest.raises(CheckpointError, match=r"cut\.safetensors"):
        open_shards([path], read_safetensors)


def test_a_file_cut_anywhere_is_refused(tmp_path):
    save_file({"w": np.arange(6, dtype=np.float32)}, tmp_path / "m.safetensors")
    whole = (tmp_path / "m.safetensors").read_bytes()

    for length in range(len(whole)):
        (tmp_path / "cut.safetensors").write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            open_shards([tmp_path / "cut.safetensors"], read_safetensors)


def shards(folder: Path, weight_map: dict[str, str]) -> Path:
    save_file({"a": np.zeros(2, np.float32)}, folder / "one.safetensors")
    save_file({"b": np.ones(2, np.float32)}, folder / "two.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return index


def test_an_index_joins_its_shards(tmp_path):
    index = shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})

    reader = open_index(index, read_safetensors)

    assert reader.names == {"a", "b"}
    assert reader.read("b").tolist() == [1, 1]


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "three.safetensors"}, "names three.safetensors, which is not there"),
        ({"a": "one.safetensors", "c": "two.safetensors"}, "places 'c' in two.safetensors"),
        ({"a": "../one.safetensors"}, "only file names in the same folder"),
        ({}, "names no tensor"),
    ],
)
def test_an_index_that_does_not_fit_its_shards_is_refused(tmp_path, weight_map, message):
    with pytest.raises(CheckpointError, match=message):
        open_index(shards(tmp_path, weight_map), read_safetensors)


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    for name in ("one", "two"):
        save_file({"a": np.zeros(2, np.float32)}, tmp_path / f"{name}.safetensors")

    with pytest.raises(CheckpointError, match=r"'a' is in both .*one.* and .*two"):
        open_shards([tmp_path / "one.safetensors", tmp_path / "two.safetensors"], read_safetensors)


MEASURE = """
    import sys
    from pathlib import Path
    from spaninfer_engine.load.containers.safetensors import read_safetensors
    from spaninfer_engine.load.containers.shards import open_shards

    def private_kib():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    reader = open_shards([Path(sys.argv[1])], read_safetensors)
    before, total = private_kib(), 0.0
    arrays = [reader.read(name) for name in sorted(reader.names)]
    for array in arrays:
        total += float(array[::512].astype("f4").sum())  # touches every page
    print(private_kib() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="private memory is read there")
def test_reading_a_large_file_takes_hardly_any_private_memory(tmp_path):
    num_bytes, count = 64 << 20, 4
    header = {
        f"w{i}": entry("BF16", [num_bytes // 2], i * num_bytes, (i + 1) * num_bytes)
        for i in range(count)
    }
    path = write(tmp_path / "large.safetensors", header)
    with path.open("r+b") as file:  # a file with holes: reads as zeros, takes no disk
        file.truncate(path.stat().st_size + count * num_bytes)

    measured = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURE), str(path)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert int(measured.stdout) * 1024 < 0.15 * count * num_bytes


def test_a_header_of_more_tensors_than_any_model_has_is_refused_before_it_is_taken_apart(tmp_path):
    """Seen before: 33 s of CPU time and 1.4 GB of memory for 1.4 million tensors of no element."""
    header = b"{" + b",".join(
        b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % number
        for number in range(1_400_000)
    )
    path = write(tmp_path / "many.safetensors", header + b"}")

    tracemalloc.start()
    began_s = time.process_time()
    try:
        with pytest.raises(
            CheckpointError, match=r"many\.safetensors: the header has 9,800,000 bra.*100,000 tens"
        ):
            open_shards([path], read_safetensors)
        spent_s = time.process_time() - began_s
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 2 * path.stat().st_size
    assert spent_s < 5, "counting takes 0.2 s; taking the header apart 33"


@pytest.mark.parametrize("deep", [b"[" * 100_000, b'{"a":' * 100_000])
def test_a_header_that_is_nested_beyond_reading_is_refused(tmp_path, deep):
    path = write(tmp_path / "deep.safetensors", b'{"__metadata__":' + deep)

    with pytest.raises(
        CheckpointError, match=r"deep\.safetensors: the header: tables and lists are"
    ):
        open_shards([path], read_safetensors)
