"""Videos of the Qwen-VL families: which frames, how large, and at what times."""

import json

import numpy as np
import pytest
from scenes import scene
from spaninfer_multimodal import FrameSampling, Spacing, Video, load_processors
from spaninfer_multimodal.process.qwen_vl import grid_times, smart_resize
from spaninfer_multimodal.sampling import sample_frames, timeline_of


@pytest.fixture
def processors(tmp_path):
    """The processors of Qwen2-VL and Qwen3-VL with the defaults of transformers."""
    found = {}
    for name in ("Qwen2VL", "Qwen3VL"):
        folder = tmp_path / name
        folder.mkdir()
        image = {"image_processor_type": "Qwen2VLImageProcessor"}
        video = {"video_processor_type": f"{name}VideoProcessor"}
        (folder / "preprocessor_config.json").write_text(json.dumps(image))
        (folder / "video_preprocessor_config.json").write_text(json.dumps(video))
        found[name] = load_processors(folder).vision
    return found


SAMPLED = [
    (5104, 50.0, 1.0, 102, 257702, 102, 260253),
    (1380, 29.97, 4.0, 184, 126224, 184, 126868),
    (5795, 25.0, 1.0, 230, 663415, 231, 669207),
    (3513, 60.0, 1.0, 58, 100092, 58, 101848),
    (5516, 24.0, 4.0, 768, 2115004, 768, 2117760),
    (3322, 10.0, 1.0, 332, 549626, 332, 551286),
    (5918, 60.0, 0.5, 48, 139050, 49, 144966),
]
"""Frames and rate of a video, rate asked for; how many indices transformers 5.23 samples for
Qwen2-VL and their sum, and the same for Qwen3-VL (run with torchvision 0.28)."""


@pytest.mark.parametrize("case", SAMPLED)
def test_frames_are_those_that_transformers_samples(processors, case):
    total, rate, fps, *expected = case

    found = []
    for name in ("Qwen2VL", "Qwen3VL"):
        sampling = processors[name].sampling
        asked = FrameSampling(fps=fps, multiple=sampling.multiple, spacing=sampling.spacing)
        indices = sample_frames(asked, total, rate)
        found += [len(indices), sum(indices)]

    assert found == expected


@pytest.mark.parametrize("spacing", Spacing)
@pytest.mark.parametrize("multiple", [1, 2])
def test_samples_ascend_and_exist_for_every_length(spacing, multiple):
    for total in (1, 2, 3, 4, 5, 7, 253, 480, 899, 2510, 2687, 4385):
        for sampling in (
            FrameSampling(fps=1.0, multiple=multiple, spacing=spacing),
            FrameSampling(fps=0.001, multiple=multiple, spacing=spacing),
            FrameSampling(fps=1e6, multiple=multiple, spacing=spacing),
            FrameSampling(num_frames=3, multiple=multiple, spacing=spacing),
        ):
            indices = sample_frames(sampling, total, 10.0)
            assert indices
            assert list(indices) == sorted(indices)
            assert indices[0] >= 0
            assert indices[-1] < total


def test_a_number_of_frames_is_kept_to():
    for spacing, expected in ((Spacing.FLOOR, (0, 25, 50, 75)), (Spacing.ENDS, (0, 33, 66, 99))):
        assert sample_frames(FrameSampling(num_frames=4, spacing=spacing), 100, 25.0) == expected


GRIDS = [
    ((7, 200, 320), (4, 18, 30), (4, 12, 20)),
    ((4, 20, 24), (2, 22, 26), (2, 12, 14)),
    ((12, 720, 1280), (6, 40, 72), (6, 12, 20)),
    ((5, 1080, 608), (3, 72, 40), (3, 32, 18)),
    ((32, 480, 640), (16, 34, 46), (16, 8, 10)),
    ((4, 90, 1000), (2, 8, 76), (2, 6, 62)),
    ((2, 28, 28), (1, 24, 24), (1, 16, 16)),
    ((64, 360, 640), (32, 26, 46), (32, 4, 8)),
]
"""Frames, height and width, and the grids of transformers 5.23 for Qwen2-VL and Qwen3-VL."""


@pytest.mark.parametrize(("shape", "second", "third"), GRIDS)
def test_sizes_are_those_of_transformers(processors, shape, second, third):
    num_frames, height, width = shape

    for name, grid in (("Qwen2VL", second), ("Qwen3VL", third)):
        settings = processors[name].videos
        rows, columns = smart_resize((height, width), settings, num_frames)
        assert (rows // settings.patch, columns // settings.patch) == grid[1:]
        assert -(-num_frames // settings.temporal) == grid[0]


@pytest.mark.parametrize("name", ["Qwen2VL", "Qwen3VL"])
def test_patches_are_torch_s_resampling_within_the_bound(processors, name):
    torch = pytest.importorskip("torch", reason="is the oracle")
    frames = np.stack([scene(60, 90, seed) for seed in range(3)])
    processor = processors[name]
    settings = processor.videos

    patches = processor.video(Video(frames, (0, 5, 10), 10.0, 15))

    grid_t, rows, columns = patches.grid_thw
    size = rows * settings.patch, columns * settings.patch
    channels_first = torch.from_numpy(frames.transpose(0, 3, 1, 2).copy())
    resized = torch.nn.functional.interpolate(
        channels_first, size, mode="bicubic", antialias=True
    ).numpy()
    resized = np.concatenate([resized, resized[-1:]])  # to whole temporal patches
    mean, std = np.array(settings.normalisation.mean), np.array(settings.normalisation.std)
    expected = (resized / 255 - mean[:, None, None]) / std[:, None, None]
    for row in (0, 1, 2, columns * 2, len(patches.pixels) - 1):
        t, cell = divmod(row, rows * columns)
        high, rest = divmod(cell, columns * 2)
        wide, inner = divmod(rest, 4)
        top = (high * 2 + inner // 2) * settings.patch
        left = (wide * 2 + inner % 2) * settings.patch
        part = expected[
            2 * t : 2 * t + 2, :, top : top + settings.patch, left : left + settings.patch
        ].transpose(1, 0, 2, 3)
        difference = np.abs(patches.pixels[row] - part.reshape(-1))
        assert difference.max() * 255 * std.max() < 2.5
    assert grid_t == 2
    assert patches.num_tokens == 2 * rows * columns // 4


def test_times_are_those_between_the_frames_of_a_patch(processors):
    frames = np.zeros((5, 28, 28, 3), np.uint8)
    video = Video(frames, (0, 5, 10, 15, 20), 10.0, 25)

    patches = processors["Qwen2VL"].video(video)

    assert patches.times_s == (0.25, 1.25, 2.0)
    assert patches.seconds_per_grid == pytest.approx(2 / (5 / 25 * 10))
    assert grid_times((1.0,), 2) == (1.0,)


def test_a_declared_rate_is_believed_where_the_frames_agree():
    exact, rounded = 30000 / 1001, [round(n * 1001 / 30000, 3) for n in range(100)]

    assert timeline_of(rounded, exact).fps == exact
    assert timeline_of(rounded, 90.0).fps == pytest.approx(exact, rel=1e-3)
    assert timeline_of(rounded, None).fps == pytest.approx(exact, rel=1e-3)
    assert [timeline_of(rounded, exact).shown_at(n) for n in range(100)] == list(range(100))
