import pytest
from spaninfer.bench.plot import draw, groups
from spaninfer.bench.records import summary
from spaninfer.bench.targets import Bar
from spaninfer_engine import ConfigError


def record(workload, unit, *runs):
    named = {"benchmark": "engine", "workload": workload, "model": "Qwen 7B"}
    return {**named, **summary(unit, runs), "device": "NVIDIA H200"}


RECORDS = [
    record("tpot_bs1", "ms", 3.0, 3.5, 4.0),
    record("mixed1024", "tok/s", 12_000.0),
    record("ttft_8192", "ms", 180.0, 190.0),
]
BARS = [Bar({"workload": "tpot_bs1"}, 3.8, {"vLLM": 4.7}), Bar({"workload": "ttft_8192"}, None)]


def test_records_of_one_model_and_unit_share_a_picture():
    assert {name: len(group) for name, group in groups(RECORDS).items()} == {
        "engine-qwen-7b-ms": 2,
        "engine-qwen-7b-tok-s": 1,
    }


@pytest.mark.parametrize("bars", [BARS, []])
def test_every_group_becomes_a_png(tmp_path, bars):
    paths = list(draw(RECORDS, bars, tmp_path / "new"))

    assert [path.name for path in paths] == ["engine-qwen-7b-ms.png", "engine-qwen-7b-tok-s.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    place = tmp_path / "taken"
    place.touch()

    with pytest.raises(ConfigError, match="taken cannot be created"):
        list(draw(RECORDS, [], place))
