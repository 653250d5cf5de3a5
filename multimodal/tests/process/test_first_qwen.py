"""Pictures and clips of Qwen-VL and Qwen-Audio (2023), whose folders have no processor's file."""

import json

import numpy as np
import pytest
from PIL import Image as Pillow
from scenes import picture
from spaninfer_multimodal import Audio, ConfigError, TooLarge, Unreadable, load_processors
from spaninfer_multimodal.process.whisper import log_mel

VISUAL = {"image_size": 448, "patch_size": 14, "width": 1664, "image_start_id": 151857}
AUDIO = {"n_mels": 80, "n_ctx": 1500, "avg_pool": True, "add_audio_bos_eos_token": True}


def loaded(folder, **config):
    (folder / "config.json").write_text(json.dumps(config))
    return load_processors(folder)


@pytest.mark.parametrize("size", [(448, 448), (100, 333), (37, 41), (900, 30), (1, 1)])
def test_pictures_are_prepared_as_by_torchvision(tmp_path, size):
    torch = pytest.importorskip("torch", reason="is the oracle")
    image = picture(*size)

    tiles = loaded(tmp_path, visual=VISUAL).vision.image(image)

    scaled = Pillow.fromarray(image.pixels).resize((448, 448), Pillow.Resampling.BICUBIC)
    unit = torch.from_numpy(np.array(scaled)).permute(2, 0, 1).float().div(255)
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073])[:, None, None]
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711])[:, None, None]
    np.testing.assert_array_equal(tiles.pixels[0], ((unit - mean) / std).numpy())
    assert (len(tiles.pixels), tiles.num_tokens) == (1, 256)


def clip(num_samples):
    noise = np.random.default_rng(num_samples).normal(0, 0.1, num_samples)
    return Audio(noise.astype(np.float32))


@pytest.mark.parametrize(
    ("samples", "frames", "tokens"),
    [(480, 3, 1), (639, 3, 1), (16_000, 100, 25), (16_159, 100, 25), (480_000, 3000, 750)],
)
def test_a_clip_ends_with_its_own_sound_and_stands_between_two_rows(
    tmp_path, samples, frames, tokens
):
    mel = loaded(tmp_path, audio=AUDIO).audio.audio(clip(samples))

    whole = log_mel(np.pad(clip(samples).samples, (0, 480_000 - samples)), 80, 400, 160)
    assert (mel.num_valid, mel.num_tokens) == (frames, tokens + 2)
    np.testing.assert_array_equal(mel.features, whole[:, : frames + frames % 2])


def test_too_long_and_too_short_clips_are_refused(tmp_path):
    processor = loaded(tmp_path, audio=AUDIO).audio

    with pytest.raises(TooLarge, match=r"lasts 30\.1 s; this model hears 30 s at once"):
        processor.audio(clip(481_600))
    with pytest.raises(Unreadable, match=r"0\.030 s; this model hears nothing in less than 0\.03"):
        processor.audio(clip(479))


def test_what_is_not_implemented_is_refused_by_its_key(tmp_path):
    with pytest.raises(ConfigError, match="avg_pool is False"):
        loaded(tmp_path, audio={**AUDIO, "avg_pool": False})
    with pytest.raises(ConfigError, match="image_size is missing"):
        loaded(tmp_path, visual={"patch_size": 14})
