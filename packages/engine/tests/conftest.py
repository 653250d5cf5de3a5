"""Fixtures of all tests of the engine."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Every run tries the same examples, and on a slow machine none is too late.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")

# Helpers of several test files are modules of the folder fixtures/, imported by their bare names.
sys.path.append(str(Path(__file__).parent / "fixtures"))


@pytest.fixture(autouse=True)
def _stream_of_its_own(request: pytest.FixtureRequest) -> Iterator[None]:
    """Kernels are not launched on the legacy default stream, which is torch's unless told so."""
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    torch = pytest.importorskip("torch")
    with torch.cuda.stream(torch.cuda.Stream()):
        yield
