"""Positions and windows beside transformers', and beside their definition where it errs."""

from types import MethodType, SimpleNamespace

import numpy as np
import pytest
from spaninfer_multimodal import (
    MediaRun,
    TextRun,
    attention_windows,
    mrope_positions,
    patch_positions,
)

RATE = 2


def of_transformers(runs, seconds_per_grid):
    """The positions that Qwen2.5-VL computes in transformers."""
    torch = pytest.importorskip("torch", reason="is the oracle")
    pytest.importorskip("transformers", reason="is the oracle")
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

    kinds, images, videos = [], [], []
    for run in runs:
        if isinstance(run, TextRun):
            kinds += [0] * run.num_tokens
        else:
            frames, height, width = run.grid_thw
            (images if frames == 1 else videos).append(run.grid_thw)
            kinds += [1 if frames == 1 else 2] * (frames * height * width // 4)
    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=RATE)
    model = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    name = "get_vision_position_ids"
    if hasattr(Qwen2_5_VLModel, name):
        setattr(model, name, MethodType(getattr(Qwen2_5_VLModel, name), model))
    ids, delta = Qwen2_5_VLModel.get_rope_index(
        model,
        torch.zeros(1, len(kinds), dtype=torch.long),
        torch.tensor([kinds]),
        torch.tensor(images) if images else None,
        torch.tensor(videos) if videos else None,
        seconds_per_grid,
    )
    return ids[:, 0].numpy(), int(delta)


def drawn_runs(rng):
    """Text, images and short videos in some order, never two media in touch."""
    runs = [TextRun(int(rng.integers(1, 6)))]
    seconds = []
    for _ in range(rng.integers(1, 5)):
        height, width = (2 * int(rng.integers(1, 9)) for _ in range(2))
        if rng.random() < 0.5:
            runs.append(MediaRun((1, height, width)))
        else:
            seconds.append(float(rng.choice([0.25, 0.5, 1 / 3])))
            most = max(height, width) // 2 / (seconds[-1] * RATE)
            frames = max(2, int(min(6, most)))
            if (frames - 1) * seconds[-1] * RATE >= max(height, width) // 2:
                height = width = 16  # transformers is right where time is the shortest axis
            runs.append(MediaRun((frames, height, width), step=seconds[-1] * RATE))
        runs.append(TextRun(int(rng.integers(1, 6))))
    return runs, seconds


@pytest.mark.parametrize("seed", range(30))
def test_media_in_any_order_have_the_positions_of_transformers(seed):
    runs, seconds = drawn_runs(np.random.default_rng(seed))

    positions = mrope_positions(runs)

    ids, delta = of_transformers(runs, seconds or None)
    np.testing.assert_array_equal(positions.ids, ids)
    assert positions.delta == delta


def test_text_after_a_long_video_continues_behind_all_of_it():
    runs = [TextRun(2), MediaRun((6, 4, 4)), TextRun(3)]

    positions = mrope_positions(runs)

    assert positions.ids[:, :2].tolist() == [[0, 1]] * 3
    assert positions.ids[0, 2:-3].tolist() == [2 + frame for frame in range(6) for _ in range(4)]
    assert positions.ids[:, -3:].tolist() == [[8, 9, 10]] * 3  # transformers 4.57.6: the same
    assert positions.delta == -18


def test_time_is_cut_to_whole_positions():
    positions = mrope_positions([MediaRun((4, 2, 2), step=1.6)])

    assert positions.ids[0].tolist() == [0, 1, 3, 4]


def test_text_alone_counts_on():
    positions = mrope_positions([TextRun(3), TextRun(0), TextRun(2)])

    assert positions.ids.tolist() == [[0, 1, 2, 3, 4]] * 3
    assert positions.delta == 0
    assert mrope_positions([]).ids.shape == (3, 0)
    assert not positions.ids.flags.writeable


@pytest.mark.parametrize("grid", [(1, 4, 6), (2, 8, 2), (3, 2, 2)])
def test_patches_are_where_transformers_has_them(grid):
    torch = pytest.importorskip("torch", reason="is the oracle")
    vision = pytest.importorskip("transformers.vision_utils", reason="is the oracle")

    expected = vision.get_vision_position_ids(torch.tensor([grid]), 2)

    np.testing.assert_array_equal(patch_positions(grid, 2), expected.numpy())


@pytest.mark.parametrize("seed", range(10))
def test_windows_are_those_of_transformers(seed):
    torch = pytest.importorskip("torch", reason="is the oracle")
    vision = pytest.importorskip("transformers.vision_utils", reason="is the oracle")
    rng = np.random.default_rng(seed)
    grids = [
        (int(rng.integers(1, 4)), 2 * int(rng.integers(1, 14)), 2 * int(rng.integers(1, 14)))
        for _ in range(rng.integers(1, 4))
    ]

    windows = attention_windows(grids, merge=2, window=112, patch=14)

    order, ends = vision.get_vision_window_index(torch.tensor(grids), 2, 112, 14)
    np.testing.assert_array_equal(windows.order, order.numpy())
    np.testing.assert_array_equal(np.cumsum(windows.lengths), ends.numpy()[1:])
