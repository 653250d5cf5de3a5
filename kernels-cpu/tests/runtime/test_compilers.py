"""Compilation by several processes into one cache, and in this process where they fail."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from spaninfer_kernels_cpu.codegen.elements import BFLOAT16, FLOAT32
from spaninfer_kernels_cpu.codegen.kernel import (
    is_on_disk,
    is_ready,
    name_of,
    native_of,
)
from spaninfer_kernels_cpu.elementwise.formula_call import (
    ADD,
    SCALE,
    _over_columns,
    formula_call,
    gate_formula,
)
from spaninfer_kernels_cpu.elementwise.gather_call import _copy, _embed, _gather_rows
from spaninfer_kernels_cpu.runtime import compilers
from spaninfer_kernels_cpu.runtime.call import Matrix, Script
from spaninfer_kernels_cpu.runtime.compilers import Compilers, _Process
from spaninfer_kernels_cpu.runtime.thread_pool import ThreadPool

ENOUGH_S = 120.0

BEGIN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & has it ignored
from spaninfer_kernels_cpu.runtime import compilers
from spaninfer_kernels_cpu.codegen.elements import BFLOAT16, FLOAT32
from spaninfer_kernels_cpu.elementwise.formula_call import ADD, _over_columns, gate_formula
from spaninfer_kernels_cpu.codegen.kernel import native_of
from spaninfer_kernels_cpu.elementwise.gather_call import _copy, _embed, _gather_rows

compilers.LITTLE_S = 0.0
kernels = [_embed(FLOAT32), _embed(BFLOAT16), _copy, _gather_rows]
kernels += [_over_columns(ADD), _over_columns(gate_formula("silu"))]
together = compilers.Compilers(most=3)
together.begin(kernels)
"""

FINISH = """
together.finish()
print(sum(native_of(kernel).was_loaded for kernel in kernels))
"""


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """Have kernels compiled anew, into an empty folder, however few they are."""
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compilers, "LITTLE_S", 0.0)
    native_of.cache_clear()
    yield
    native_of.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_what_other_processes_compile_is_loaded_here():
    kernels = [_embed(FLOAT32), _over_columns(gate_formula("silu"))]  # constants within constants
    together = Compilers(most=3)

    together.begin(kernels)
    wait_until(lambda: all(map(is_on_disk, kernels)))
    assert not any(map(is_ready, kernels))
    together.finish()

    assert [native_of(kernel).was_loaded for kernel in kernels] == [1, 1]
    wait_until(lambda: not together._processes)


@pytest.mark.usefixtures("fresh")
def test_where_all_is_on_disk_no_process_is_started(monkeypatch):
    kernels = [_copy, _gather_rows]
    Compilers(most=1).finish(kernels)
    native_of.cache_clear()
    monkeypatch.setattr(compilers, "_Process", lambda: pytest.fail("a process was started"))

    Compilers(most=8).finish(kernels)

    assert all(native_of(kernel).was_loaded for kernel in kernels)


@pytest.mark.usefixtures("fresh")
def test_a_caller_that_waits_is_given_every_kernel_that_was_missing(monkeypatch):
    told, begun = [], threading.Event()

    class Late(_Process):
        def answer(self):
            assert begun.wait(ENOUGH_S)
            return super().answer()

    def tell(*news):
        told.append(news)
        begun.set()

    monkeypatch.setattr(compilers, "_Process", Late)
    Compilers(tell, most=2).finish([_copy, _gather_rows])

    assert told[0] == (0, 2)
    assert told[-1] == (2, 2)
    assert told == sorted(told)


@pytest.mark.usefixtures("fresh")
def test_a_process_that_is_killed_leaves_its_kernel_to_this_one(monkeypatch):
    class Killed(_Process):
        def compile(self, name):
            self.kill()
            self._popen.wait()
            return super().compile(name)

    monkeypatch.setattr(compilers, "_Process", Killed)
    kernels = [_embed(FLOAT32), _embed(BFLOAT16), _copy, _gather_rows]
    together = Compilers(most=2)
    together.begin(kernels)
    wait_until(lambda: together._others == 0)  # it took one, and was missed

    with pytest.warns(RuntimeWarning, match="compiled by one process instead of several: another"):
        together.finish()

    assert all(map(is_ready, kernels))


@pytest.mark.parametrize("interpreter", ["/nowhere/python3", "/usr/sbin/embedder", ""])
@pytest.mark.usefixtures("fresh")
def test_where_no_process_can_be_started_this_one_compiles_and_says_why(monkeypatch, interpreter):
    monkeypatch.setattr(sys, "executable", interpreter)

    with pytest.warns(RuntimeWarning, match=r"cannot be started \(.*" + interpreter):
        Compilers(most=4).finish([_copy, _gather_rows])

    assert is_ready(_copy)
    assert is_ready(_gather_rows)


@pytest.mark.usefixtures("fresh")
def test_a_process_says_why_it_ended():
    with _Process() as process:
        assert process.answer() is None
        why = process.compile(
            ["spaninfer_kernels_cpu.elementwise.gather_call", "no_such_kernel", None]
        )

    assert why is not None
    assert "no_such_kernel" in why


def test_a_script_without_a_guard_is_not_run_by_the_processes_that_help_it(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(f"print('begun', flush=True)\n{BEGIN}{FINISH}")

    ran = run([script], tmp_path)

    assert ran.stdout.splitlines()[:-1] == ["begun"]
    assert ran.stderr == ""


TELL = """
print(*(one._popen.pid for one in together._processes), flush=True)
"""

# Two kernels are given away, one is compiled here: then all wait for their end: it is never late.
HELD = """
import time
from threading import Semaphore
left, given = Semaphore(2), compilers.Compilers._next_elsewhere
compilers.Compilers._next_elsewhere = lambda together: left.acquire() and given(together)
together._tell = lambda done, total: done and time.sleep(600)
"""


def interrupt_all(pid):
    os.killpg(pid, signal.SIGINT)  # as a terminal does


def kill_one(pid):
    os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of terminals are another thing there")
@pytest.mark.parametrize("kill", [interrupt_all, kill_one], ids=["Ctrl-C", "killed"])
def test_an_end_in_between_ends_all_and_leaves_what_the_next_start_completes(tmp_path, kill):
    first, script = tmp_path / "first.py", tmp_path / "program.py"
    first.write_text(BEGIN.replace("together.begin", f"{HELD}together.begin") + TELL + FINISH)
    script.write_text(BEGIN + FINISH)
    begun = subprocess.Popen(
        [sys.executable, first],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with begun:
        pids = [int(pid) for pid in begun.stdout.readline().split()]
        wait_until(lambda: kept(tmp_path))
        kill(begun.pid)
        _, errors = begun.communicate(timeout=ENOUGH_S)
    found = kept(tmp_path)

    again = run([script], tmp_path)

    assert begun.returncode != 0, errors
    assert len(pids) == 2
    wait_until(lambda: not any(map(is_alive, pids)))
    assert 1 <= len(found) < 6
    assert int(again.stdout.split()[-1]) >= len(found)
    assert len(kept(tmp_path)) == 6
    assert run([script], tmp_path).stdout.split()[-1] == "6"


@pytest.mark.usefixtures("fresh")
def test_variants_of_a_kernel_that_are_the_first_of_their_processes_are_told_apart():
    x, out = np.full((2, 5), 3, np.float32), np.zeros((2, 5), np.float32)
    rows, into = Matrix(x.ctypes.data, 20), Matrix(out.ctypes.data, 20)
    calls = [
        formula_call(formula, (rows, rows), out=into, channels=5, number=2.0)
        for formula in (ADD, SCALE)
    ]
    for call in calls:
        with _Process() as process:
            assert process.answer() is None
            assert process.compile(name_of(call.kernel)) is None

    results = []
    with ThreadPool(1) as thread_pool:
        for call in calls:
            thread_pool.run(Script([call]), [len(x)])
            results.append(out.copy())

    assert [native_of(call.kernel).was_loaded for call in calls] == [1, 1]
    np.testing.assert_array_equal(results, [x + 2 * x, 2 * x])


def run(arguments, folder):
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(folder),
        capture_output=True,
        text=True,
        check=True,
        timeout=ENOUGH_S,
    )


def environment(folder):
    return os.environ | {"NUMBA_CACHE_DIR": str(folder)}


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def kept(folder):
    return sorted(path.name for path in folder.rglob("*.kernel"))


def wait_until(is_so):
    deadline = time.monotonic() + ENOUGH_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
