import os
import signal
import subprocess
import sys
from importlib.metadata import version

import pytest
import spaninfer
import spaninfer_engine
from spaninfer_engine.tools.conversion import convert


def test_what_is_offered_is_there():
    assert sorted(spaninfer.__all__) == spaninfer.__all__
    for name in spaninfer_engine.__all__:
        assert getattr(spaninfer, name) is getattr(spaninfer_engine, name)
    assert set(spaninfer.__all__) - set(spaninfer_engine.__all__) == {"__version__", "convert"}
    assert spaninfer.convert is convert
    assert spaninfer.__version__ == version("spaninfer")
    with pytest.raises(AttributeError, match="'spaninfer' has no attribute 'engine'"):
        spaninfer.engine  # noqa: B018


def test_dir_lists_what_is_offered_and_imports_nothing_of_it():
    listed = (
        "import sys, spaninfer\n"
        "assert set(dir(spaninfer)) >= set(spaninfer.__all__)\n"
        "assert 'spaninfer_engine' not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", listed], check=True)


def test_the_command_line_is_imported_without_what_only_some_commands_need():
    """Numba is for kernels of the CPU, FastAPI for servers: each as much as all other imports."""
    parts = "{'numba', 'fastapi', 'pydantic', 'spaninfer.bench.commands', 'spaninfer.bench.engine'}"
    program = f"import sys, spaninfer.cli; print({parts} & {{*sys.modules}})"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_python_m_and_the_command_are_the_same_program():
    done = subprocess.run(
        [sys.executable, "-m", "spaninfer", "--version"], capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("spaninfer ")


posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

PRESSED_AT = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & has it ignored


class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill({pressed_for}, signal.SIGINT)
            while {waits}:
                signal.pause()


sys.meta_path.insert(0, Pressed())
"""


def pressed_at(folder, module, pressed_for="os.getpid()", waits=False):
    """The environment of a Python that sends Ctrl-C when it begins to import a module."""
    source = PRESSED_AT.format(module=module, pressed_for=pressed_for, waits=waits)
    (folder / "sitecustomize.py").write_text(source, encoding="utf-8")
    return os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


@posix
@pytest.mark.parametrize(
    ("module", "program"),
    [
        *((module, "spaninfer --version") for module in ("spaninfer.process", "threading")),
        *((module, "spaninfer --version") for module in ("numpy", "typer", "spaninfer.cli")),
        ("spaninfer_serving", "spaninfer serve"),
        ("spaninfer_serving.supervisor.supervisor", "spaninfer serve"),
        *((module, "spaninfer.bench --help") for module in ("typer", "spaninfer.bench.commands")),
    ],
)
def test_ctrl_c_during_an_import_ends_the_process_as_a_signal_does(tmp_path, module, program):
    done = subprocess.run(
        [sys.executable, "-m", *program.split()],
        capture_output=True,
        text=True,
        env=pressed_at(tmp_path, module),
    )

    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_next_to_nothing_is_imported_before_ctrl_c_is_provided_for():
    program = (
        "import sys; before = {*sys.modules}; import spaninfer.__main__; "
        "print(sorted({*sys.modules} - before))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout == "['spaninfer', 'spaninfer.__main__', 'spaninfer.ctrl_c']\n", done.stderr


@posix
@pytest.mark.parametrize("module", ["spaninfer_serving.lifeline", "spaninfer.process", "typer"])
def test_ctrl_c_while_the_engines_process_imports_ends_the_server_without_a_word(tmp_path, module):
    """A terminal sends it to the supervisor, which passes it on."""
    done = subprocess.run(
        [sys.executable, "-m", "spaninfer", "serve"],
        capture_output=True,
        text=True,
        env=pressed_at(tmp_path, module, pressed_for="os.getppid()", waits=True),
    )

    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")


@posix
def test_ctrl_c_behind_all_imports_ends_a_command_without_a_word(tmp_path):
    """Code that runs may clean up: it gets an exception, as everywhere in Python."""
    done = subprocess.run(
        [sys.executable, "-m", "spaninfer", "list"],
        capture_output=True,
        text=True,
        env=pressed_at(tmp_path, "huggingface_hub") | {"HF_HOME": str(tmp_path)},
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_error_that_follows_from_a_swallowed_ctrl_c_ends_it_without_a_word(tmp_path):
    """As of LLVM, whose callback stores the code that it has made."""
    interrupted = (
        "import ctypes, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "@ctypes.CFUNCTYPE(None)\n"
        "def callback():\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    for _ in range(1000): pass\n"
        "callback()\n"
        "raise RuntimeError('no compiled object yet')\n"
    )
    (tmp_path / "typer.py").write_text(interrupted, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "spaninfer", "--version"],
        capture_output=True,
        text=True,
        env=os.environ
        | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_instructions_that_the_environment_names_and_the_cpu_lacks_are_told_in_a_sentence():
    done = subprocess.run(
        [sys.executable, "-m", "spaninfer", "info"],
        capture_output=True,
        text=True,
        env=os.environ | {"SPANINFER_CPU_TIER": "abacus"},
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: SPANINFER_CPU_TIER is 'abacus', but this CPU has ")
    assert "Traceback" not in done.stderr


def test_characters_that_an_output_has_no_codes_for_end_nothing():
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "spaninfer",
            "generate",
            "demo",
            "A fox: \N{FOX FACE}",
            "--max-tokens",
            "2",
        ],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "cp1252"},
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"A fox: ?")


def test_a_question_can_be_edited_with_the_arrow_keys():
    pytest.importorskip("readline", reason="without it the console edits lines")
    import pty

    ours, theirs = pty.openpty()
    program = "from spaninfer.chat_input import read_message; print(repr(read_message()))"
    with subprocess.Popen([sys.executable, "-c", program], stdin=theirs, stdout=theirs, text=True):
        os.close(theirs)
        os.write(ours, b"fx\x1b[Do\n")  # f, x, one to the left, o
        shown = "".join(iter(lambda: said(ours), ""))
    os.close(ours)

    assert "'fox'" in shown


def said(terminal):
    """Wait for what a program writes; nothing when it has ended."""
    try:
        return os.read(terminal, 65536).decode()
    except OSError:  # how Linux says so
        return ""
