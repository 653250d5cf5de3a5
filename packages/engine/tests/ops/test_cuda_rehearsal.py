"""The largest step fills what sizes allow, and its columns say what its launch says."""

import pytest

pytest.importorskip("torch")

from host_device import Columns
from spaninfer_engine.ops.cuda_memory import Sizes
from spaninfer_engine.ops.cuda_rehearsal import largest_step
from spaninfer_engine.plan import MOST_LOGITS


@pytest.mark.parametrize(
    ("requests", "rows", "max_len"),
    [
        (256, 8192, 32768),
        (256, 8192, 512),
        (1, 512, 4096),
        (7, 64, 10),
        (300, 300, 40),
        (2, 2, 9),
        (256, 16, 4096),  # fewer rows than requests
        (256, 1, 4096),
    ],
)
def test_the_largest_step_takes_every_slice_and_nearly_every_row(requests, rows, max_len):
    sizes = Sizes(requests=requests, rows=rows, max_len=max_len, span_len=16, num_groups=1)
    columns = Columns.poisoned(sizes.slices)

    launch = largest_step(sizes, columns, num_rotations=2)

    slices, prompts = launch.slices, launch.slices - launch.num_decodes
    lengths = [run.last - run.first for run in launch.prefills]
    assert slices == min(requests, rows)
    assert min(rows, requests * max_len) - prompts < launch.rows <= rows or prompts == requests
    assert launch.rows == columns.bounds[slices] == launch.num_decodes + sum(lengths)
    assert launch.wanted == columns.wanted[slices] == slices + min(lengths[-1], MOST_LOGITS) - 1
    assert min(lengths) >= 1
    assert max(lengths) <= max_len
    assert columns.stops[:slices].max() == launch.max_len == max(lengths)
    assert (columns.draws[:slices] == -1).all()
    assert launch.rotations == (None, None)
