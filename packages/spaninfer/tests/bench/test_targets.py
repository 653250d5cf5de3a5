import json
from pathlib import Path

import pytest
from spaninfer.bench.cpu.formats import FORMATS, TORCH, name_of
from spaninfer.bench.cpu.formats import OURS as OURSELVES
from spaninfer.bench.cpu.run import MODEL, NAMES
from spaninfer.bench.cpu.sides import LLAMA
from spaninfer.bench.shapes import SHAPES
from spaninfer.bench.startup import STARTUPS
from spaninfer.bench.targets import find_bar, read_bars
from spaninfer.bench.workloads import WORKLOADS
from spaninfer_engine import ConfigError

OURS = Path(__file__).parents[4] / "benchmarks" / "targets.toml"
TEXT = """
[[table]]
of = { benchmark = "engine", device = "NVIDIA H200" }
bars = [
    { workload = "tpot_bs1", reach = 3.8, peers = { vLLM = 4.73 } },
    { workload = "mixed1024", reach = 15000 },
    { workload = "hit0.9", peers = { vLLM = 15.9 } },
]
"""


@pytest.fixture
def bars(tmp_path):
    (tmp_path / "bars.toml").write_text(TEXT)
    return read_bars(tmp_path / "bars.toml")


def measured(workload, unit, median, device="NVIDIA H200"):
    return {
        "benchmark": "engine",
        "workload": workload,
        "unit": unit,
        "median": median,
        "device": device,
    }


@pytest.mark.parametrize(
    ("record", "is_reached"),
    [
        (measured("tpot_bs1", "ms", 3.7), True),
        (measured("tpot_bs1", "ms", 3.9), False),
        (measured("mixed1024", "tok/s", 15_001), True),
        (measured("mixed1024", "tok/s", 14_999), False),
        (measured("hit0.9", "ms", 1.0), None),
    ],
)
def test_a_time_reaches_its_bar_from_below_and_a_rate_from_above(bars, record, is_reached):
    bar = find_bar(bars, record)

    assert bar is not None
    assert bar.is_reached(record) is is_reached


def test_a_bar_is_for_records_in_which_all_its_fields_agree(bars):
    assert find_bar(bars, measured("tpot_bs1", "ms", 3.7, device="cpu")) is None
    assert find_bar(bars, measured("tpot_bs8", "ms", 3.7)) is None


@pytest.mark.parametrize(
    "text",
    [
        "[[table",
        "bars = []",
        '[[table]]\nof = {}\nbars = [{ workload = "a", reach = "soon" }]',
        '[[table]]\nof = {}\nbars = [{ workload = "a", peers = "vLLM" }]',
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, text):
    (tmp_path / "bars.toml").write_text(text)

    with pytest.raises(ConfigError, match=r"bars\.toml"):
        read_bars(tmp_path / "bars.toml")


def test_bars_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
        read_bars(tmp_path / "none.toml")


def test_the_bars_of_the_repository_are_for_what_is_measured():
    if not OURS.is_file():
        pytest.skip("the package is tested outside of the repository")
    names = {*STARTUPS, *(workload.name for workload in WORKLOADS)}

    engine = [bar.of for bar in read_bars(OURS) if bar.of["benchmark"] == "engine"]

    assert {of["model"] for of in engine} <= SHAPES.keys()
    assert {of["workload"] for of in engine} <= names


def test_our_bars_beside_peers_are_for_ratios_that_are_measured():
    if not OURS.is_file():
        pytest.skip("the package is tested outside of the repository")
    ratios = {
        *((f"{OURSELVES} / {LLAMA}", f"{name_of(ours)} / {its}") for ours, its in FORMATS.items()),
        (f"{OURSELVES} / {TORCH.program}", f"{TORCH.format} / {TORCH.format}"),
    }

    beside = [bar.of for bar in read_bars(OURS) if bar.of["benchmark"] == "cpu"]

    assert {of["model"] for of in beside} == {MODEL}
    assert {(of["program"], of["format"]) for of in beside} == ratios
    assert {of["workload"] for of in beside} <= set(NAMES)


def test_every_row_of_ours_has_a_record():
    if not OURS.is_file():
        pytest.skip("the package is tested outside of the repository")
    records = [
        json.loads(line)
        for path in sorted((OURS.parent / "records").glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    measured = [record for record in records if {"benchmark", "unit", "median"} <= record.keys()]

    without = [bar.of for bar in read_bars(OURS) if not any(map(bar.fits, measured))]

    assert without == []
