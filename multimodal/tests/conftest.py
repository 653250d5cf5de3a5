"""The path of real media, and helpers shared by several test files."""

import os
import sys
from pathlib import Path

import pytest

# Helpers are modules of the folder fixtures/, imported by their bare names.
sys.path.append(str(Path(__file__).parent / "fixtures"))


def real(kind):
    """The folder of real media of one kind; the test is skipped where there is none."""
    folder = Path(os.environ["SPANINFER_TEST_DATA"], kind)  # the root's conftest.py sets it
    if not folder.is_dir():
        pytest.skip(f"needs real data: {kind}; set SPANINFER_TEST_DATA to its folder")
    return folder


@pytest.fixture
def pictures():
    """The folder of real pictures."""
    return real("images")


@pytest.fixture
def processors():
    """The folder of published settings of processors."""
    return real("processors")


@pytest.fixture
def videos():
    """The folder of real videos."""
    return real("video")


@pytest.fixture
def sounds():
    """The folder of real audio files."""
    return real("audio")
