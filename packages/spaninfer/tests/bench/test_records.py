import json

import pytest
from spaninfer.bench.records import circumstances, read, subject, summary, title
from spaninfer_engine import ConfigError

RECORD = {
    "benchmark": "engine",
    "workload": "tpot_bs1",
    "model": "qwen2.5-7b",
    **summary("ms", [3.0, 1.0, 2.0]),
    "device": "cpu",
}


def test_a_measurement_is_summed_up_by_its_median_and_range():
    assert summary("ms", [3.0, 1.23456789, 2.0]) == {
        "unit": "ms",
        "median": 2.0,
        "least": 1.2346,
        "most": 3.0,
        "runs": [3.0, 1.2346, 2.0],
    }


def test_records_are_about_the_same_whatever_was_measured_and_where():
    again = RECORD | {"median": 9.0, "runs": [9.0], "device": "NVIDIA H200", "commit": "abc"}

    assert subject(again) == subject(RECORD)
    assert subject(RECORD | {"workload": "tpot_bs8"}) != subject(RECORD)


def test_the_title_names_what_was_measured():
    assert title(RECORD) == "tpot_bs1 qwen2.5-7b"
    assert title({"kernel": "topk", "rows": 64, "unit": "us"}) == "topk rows=64"


def test_records_say_with_what_they_were_made():
    found = circumstances("cpu")

    assert found["device"] == "cpu"
    assert {"python", "spaninfer", "numpy"} <= found["versions"].keys()
    assert found["date"].endswith("+00:00")


def test_what_was_written_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(RECORD) + "\n\n" + json.dumps(RECORD | {"model": "b"}) + "\n")

    assert [record["model"] for record in read(path)] == ["qwen2.5-7b", "b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a.jsonl holds no records"),
        ("\n \n", "a.jsonl holds no records"),
        ("{", "line 1 is not JSON"),
        ('{"a": 1}', "line 1 is not a record"),
        ("[]", "line 1 is not a record"),
        (json.dumps({**RECORD, "median": "3"}), "expected benchmark and unit, and the numbers"),
        (json.dumps({name: RECORD[name] for name in RECORD if name != "most"}), "median, least"),
        ("\udcff", "not text"),
    ],
)
def test_a_file_of_something_else_is_refused_with_the_line(tmp_path, text, said):
    path = tmp_path / "a.jsonl"
    path.write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(ConfigError, match=said):
        read(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"none.jsonl cannot be read: No such file"):
        read(tmp_path / "none.jsonl")
