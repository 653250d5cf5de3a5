"""Tables of positions stretched to pictures, beside torch's interpolation."""

from __future__ import annotations

import numpy as np
import pytest
from spaninfer_engine.ops.patches import blend
from spaninfer_engine.spec.tower_nodes import Square, Stretch
from spaninfer_op_reference import blend_rows

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("stretch", "corners"), [("bilinear", True), ("bicubic", False)])
@pytest.mark.parametrize("side", [1, 2, 6, 16])
def test_a_table_is_stretched_as_by_torch(stretch: Stretch, corners: bool, side: int) -> None:
    table = np.random.default_rng(side).standard_normal((side**2, 5)).astype(np.float32)
    sizes = [(6, 6), (4, 9), (1, 3), (16, 16), (32, 20)]
    places = np.concatenate([np.indices(size).reshape(2, -1) for size in sizes], 1, dtype=np.int32)
    frame_lens = np.array([height * width for height, width in sizes], np.int32)

    found = blend_rows(table, *blend(Square(side, stretch), sizes, frame_lens, places))

    square = torch.from_numpy(table).T.reshape(1, 5, side, side)
    wanted = [
        torch.nn.functional.interpolate(square, size=size, mode=stretch, align_corners=corners)
        for size in sizes
    ]
    expected = torch.cat([each[0].flatten(1).T for each in wanted])
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
