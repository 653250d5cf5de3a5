"""Kernels are compiled at the first start, by several processes; later starts only load them."""

import json
import os
import subprocess
import sys

import pytest
from spaninfer_host_limits import usable_cpus

SERVE = """
from numba.core import event
from spaninfer_engine import Engine
from spaninfer_engine.request.request import SamplingParams

prompts = ["Once", "Once upon a time there was a little girl " * 8]
sampled = {"top_k": 40, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1, "seed": 1}
odd = {"typical_p": 0.9, "no_repeat_ngram": 3, "logit_bias": {5: 1.0}, "n": 2}
asked = [{"temperature": 0.0}, {**sampled, "logprobs": 3, "prompt_logprobs": 2}, odd]
coded = {"dtype": "bfloat16", "quantize": "int4", "quantize_group": 32, "kv_dtype": "uint4"}
for options in ({}, coded):
    with Engine("demo", backend="cpu", device="cpu", memory=1 << 28, **options) as engine:
        with event.install_recorder("numba:compiler_lock") as recorder:
            for sampling in asked:
                engine.generate(prompts * 5, SamplingParams(max_tokens=4, **sampling))
    print(len(recorder.buffer))
"""

# No guard: a process that imported this one's main module would say that it has begun as well.
START = """
import gc
import json
import sys

from spaninfer_engine.startup.build import build
from spaninfer_engine.config import EngineConfig
from spaninfer_kernels_cpu.codegen.compiled import NativeFunction

print("begun", flush=True)
if sys.argv[1:] == ["alone"]:
    sys.executable = ""  # to want another process is a warning now
told = []
build(EngineConfig(model="demo", backend="cpu"), lambda *news: told.append(news))
kernels = [one for one in gc.get_objects() if type(one) is NativeFunction]
print(json.dumps([told, len(kernels), sum(one.was_loaded for one in kernels)]))
"""


def test_no_kernel_is_made_ready_after_the_start():
    """Whatever requests ask, one or many, at first or behind a shared prefix.

    In a process of its own: kernels that other tests have used would be ready.
    """
    assert run("-c", SERVE) == ["0", "0"]


@pytest.mark.slow
@pytest.mark.skipif(usable_cpus() < 2, reason="one CPU is what this process needs itself")
def test_a_first_start_has_help_and_a_second_one_compiles_nothing(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(START)

    told, made, loaded = started(program)
    told_again, made_again, loaded_again = started(program, "alone")

    assert 0 < loaded < made
    assert made == made_again == loaded_again
    news = [tuple(numbers) for stage, *numbers in told if stage == "kernels"]
    assert (made, made) in news
    assert [tuple(numbers) for stage, *numbers in told_again if stage == "kernels"] == [
        (0, 1),
        (1, 1),
    ]


def started(program, *arguments):
    begun, result = run("-W", "error::RuntimeWarning", program, *arguments, cache=program.parent)
    assert begun == "begun"
    return json.loads(result)


def run(*arguments, cache=None):
    kept = {} if cache is None else {"NUMBA_CACHE_DIR": str(cache)}
    ended = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | kept,
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.splitlines()
