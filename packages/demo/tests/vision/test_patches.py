"""Patches that training draws on a GPU against those that the processor cuts from pictures."""

from random import Random

import pytest
from tokenizers import Tokenizer

torch = pytest.importorskip("torch")
pytest.importorskip("spaninfer", reason="scenes are drawn by the package spaninfer")
np = pytest.importorskip("numpy")
multimodal = pytest.importorskip("spaninfer_multimodal")

import vision.patches  # noqa: E402
from spaninfer.bench.pictures.atlas import Atlas  # noqa: E402
from spaninfer.bench.pictures.canvas import Style  # noqa: E402
from spaninfer.bench.pictures.draw import frames_of  # noqa: E402
from spaninfer.bench.pictures.world import draw  # noqa: E402
from vision.conversations import Writer  # noqa: E402
from vision.patches import Painter, to_device  # noqa: E402
from vision.pool import arrays_of  # noqa: E402

STYLE = Style(is_held_out=False, fonts=1)


def test_patches_are_those_of_the_processor(monkeypatch, second_stage):
    def without_grain(pixels):
        return (pixels.clamp(0, 1) * 255 + 0.5).floor() / 127.5 - 1

    monkeypatch.setattr(vision.patches, "_as_seen", without_grain)
    atlas = Atlas(STYLE.is_held_out, STYLE.fonts)
    outlines = np.concatenate([atlas.outline(number).reshape(-1) for number in range(atlas.count)])
    writer = Writer(Tokenizer.from_file(str(second_stage / "tokenizer.json")), Random(1))
    drawn = [draw(kind, Random(f"patches/{kind}"), STYLE) for kind in ("clip", "number", "chart")]
    rows = arrays_of([writer.question(each, each.asked[0]) for each in drawn], 256, slots=1)
    painter = Painter(outlines, "cpu", compiled=False)

    patches, _, _ = painter.patches(to_device(rows, "cpu"), num_clips=1)

    processor = multimodal.load_processors(second_stage).vision
    for made, each in zip(patches.numpy(), drawn, strict=True):
        frames = frames_of(each.scene, atlas)
        if each.scene.is_clip:
            shown = multimodal.Video(frames, tuple(range(len(frames))), 2.0, len(frames))
            cut = processor.video(shown).pixels
        else:
            cut = processor.image(multimodal.Image(frames[0])).pixels
        # A value whose float32 sum lies at a half may round to the next of 256 steps.
        differ = np.abs(made[: len(cut)] - cut)
        assert differ.max() < 1 / 120
        assert (differ > 1e-6).mean() < 1e-4
