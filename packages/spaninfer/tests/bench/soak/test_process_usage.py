import os
import sys
import time

import pytest
from spaninfer.bench.soak.process_usage import cpu_s, rss_mib

NOBODY = 1 << 22  # more than any pid of Linux


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_a_process_is_told_its_own_usage():
    before = cpu_s(os.getpid())
    while time.process_time() < before + 0.05:
        pass

    assert cpu_s(os.getpid()) == pytest.approx(time.process_time(), abs=0.05)
    assert 1 < rss_mib(os.getpid()) <= rss_mib(os.getpid(), "VmHWM")


def test_of_a_process_that_there_is_not_nothing_is_known():
    assert cpu_s(NOBODY) == 0.0
    assert rss_mib(NOBODY) is None
