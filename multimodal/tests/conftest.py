"""Where real pictures are."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def pictures():
    """The folder of real pictures; the test is skipped where there is none."""
    folder = Path(os.environ["SPANINFER_TEST_DATA"], "images")  # the root's conftest.py sets it
    if not folder.is_dir():
        pytest.skip("needs real data: images; set SPANINFER_TEST_DATA to its folder")
    return folder
