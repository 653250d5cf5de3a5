"""Times and records."""

import json

import pytest
from spaninfer_kernel_launch import Timing, get_gpu, record, time_launches

pytestmark = pytest.mark.gpu


def test_a_copy_takes_some_time():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.zeros(1 << 20, device="cuda")
    y = torch.zeros_like(x)

    def copy(stream, _):
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            y.copy_(x, non_blocking=True)

    timing = time_launches(copy, get_gpu(), launches=5, replays=3)

    assert 0 < timing.fastest_us <= timing.us <= timing.slowest_us


def test_a_record_is_a_line_of_json_with_its_circumstances():
    line = record(get_gpu(), Timing(2.0, 1.5, 3.0), bytes_moved=8000, kernel="topk", k=50)

    told = json.loads(line)
    assert "\n" not in line
    assert (told["kernel"], told["k"], told["us"], told["gbps"]) == ("topk", 50, 2.0, 4.0)
    assert {"device", "driver", "nvrtc", "commit", "date"} <= told.keys()
