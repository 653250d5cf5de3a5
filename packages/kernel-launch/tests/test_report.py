"""Reports parsed from ptxas output; logs of NVRTC 13.5 and 12.9."""

import pytest
from spaninfer_kernel_launch import CompileError, CompileReport
from spaninfer_kernel_launch.report import read_reports

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'small' for 'sm_80'
ptxas info    : Function properties for small
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 21 registers, used 0 barriers, 372 bytes cmem[0]
ptxas info    : Compiling entry function 'large' for 'sm_80'
ptxas info    : Function properties for large
    256 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 255 registers, 400 bytes smem, 372 bytes cmem[0]
ptxas info    : Compile time = 30.938 ms"""


def test_each_kernel_has_its_own_numbers():
    assert read_reports(LOG) == {
        "small": CompileReport(21, 0, 0, 0),
        "large": CompileReport(255, 28, 256, 400),
    }


def test_a_log_that_does_not_say_what_a_kernel_takes_is_an_error():
    with pytest.raises(CompileError, match="does not say what kernel large takes"):
        read_reports(LOG.replace("Used 255 registers", ""))
