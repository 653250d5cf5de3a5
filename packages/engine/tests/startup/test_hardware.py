import subprocess
import sys

ASK = """
import sys
from spaninfer_engine.startup.hardware import this_machine
assert not this_machine(with_gpu=False).has_cuda
assert "torch" not in sys.modules
"""


def test_who_wants_no_gpu_need_not_wait_for_torch():
    subprocess.run([sys.executable, "-c", ASK], check=True)
