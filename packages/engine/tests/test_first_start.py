"""Nothing is compiled, or loaded from the cache of compiled kernels, while a request waits."""

import subprocess
import sys

PROGRAM = """
from numba.core import event
from spaninfer_engine import Engine
from spaninfer_engine.request import SamplingParams

prompts = ["Once", "Once upon a time there was a little girl " * 8]
with Engine("demo", backend="cpu", device="cpu", memory=1 << 28) as engine:
    with event.install_recorder("numba:compiler_lock") as recorder:
        engine.generate(prompts, SamplingParams(max_tokens=4, temperature=0.0))
print(len(recorder.buffer))
"""


def test_no_kernel_is_made_ready_after_the_start():
    """In a process of its own: kernels that other tests have used would be ready."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )

    assert ended.stdout.strip() == "0"
