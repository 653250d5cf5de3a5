"""The choice of an activation's grid: a table."""

import pytest
from spaninfer_kernel_launch import Launch, ShapeError
from spaninfer_kernels_cuda.activation.tuning import launch, vector


@pytest.mark.parametrize(
    ("channels", "itemsize", "elements"),
    [(1, 2, 1), (64, 2, 8), (64, 4, 4), (4304, 2, 8), (1001, 2, 1), (1002, 4, 2), (18_944, 2, 8)],
)
def test_a_load_divides_a_row_and_holds_at_most_16_bytes(channels, itemsize, elements):
    assert vector(channels, itemsize) == elements


def test_a_row_has_channels():
    with pytest.raises(ShapeError, match="0 channels; at least 1"):
        vector(0, 2)


@pytest.mark.parametrize(
    ("loads", "gated", "blocks"),
    [(1, True, 1), (129, True, 2), (1, False, 1), (256, False, 1), (257, False, 2)],
)
def test_a_thread_makes_two_loads(loads, gated, blocks):
    step = launch(loads, gated=gated)

    assert step == Launch(grid=(blocks, 1, 1), block=(128, 1, 1), overlaps=True)


def test_no_loads_are_no_launch():
    assert launch(0, gated=True) is None


def test_results_that_a_thread_cannot_number_are_refused():
    with pytest.raises(ShapeError, match="2147483648 loads; at most 2147483647"):
        launch(2**31, gated=False)
