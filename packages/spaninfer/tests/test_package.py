import subprocess
import sys

import spaninfer


def test_what_is_offered_is_there():
    assert sorted(spaninfer.__all__) == spaninfer.__all__
    assert all(hasattr(spaninfer, name) for name in spaninfer.__all__)


def test_python_m_and_the_command_are_the_same_program():
    done = subprocess.run(
        [sys.executable, "-m", "spaninfer", "--version"], capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("spaninfer ")
