import os
import subprocess
import sys

import pytest
import spaninfer
import spaninfer_engine


def test_what_is_offered_is_there():
    assert sorted(spaninfer.__all__) == spaninfer.__all__
    for name in spaninfer.__all__:
        assert getattr(spaninfer, name) is getattr(spaninfer_engine, name)
    with pytest.raises(AttributeError, match="'spaninfer' has no attribute 'engine'"):
        spaninfer.engine  # noqa: B018


def test_python_m_and_the_command_are_the_same_program():
    done = subprocess.run(
        [sys.executable, "-m", "spaninfer", "--version"], capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("spaninfer ")


@pytest.mark.parametrize("module", ["spaninfer_engine", "typer", "fastapi"])
def test_ctrl_c_while_the_command_line_is_imported_ends_it_without_a_word(tmp_path, module):
    interrupted = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / f"{module}.py").write_text(interrupted, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "spaninfer", "--version"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
