"""Log-mel features beside transformers' extractor, and their tokens."""

import json

import numpy as np
import pytest
from spaninfer_multimodal import Audio, ConfigError, TooLarge, load_processors
from spaninfer_multimodal.process.whisper import WhisperProcessor, mel_filters, pooled_tokens


def clip(num_samples, seed=0):
    """A tone in noise."""
    noise = np.random.default_rng(seed).normal(0, 0.1, num_samples)
    return Audio((noise + np.sin(np.arange(num_samples) / 9) * 0.3).astype(np.float32))


@pytest.mark.parametrize("num_mels", [80, 128])
@pytest.mark.parametrize("num_samples", [1, 159, 161, 51_234, 480_000])
def test_features_are_those_of_transformers(num_mels, num_samples):
    transformers = pytest.importorskip("transformers", reason="is the oracle")
    extractor = transformers.WhisperFeatureExtractor(feature_size=num_mels)
    audio = clip(num_samples)

    mel = WhisperProcessor(num_mels, pools=True).audio(audio)

    theirs = extractor(
        audio.samples, sampling_rate=16_000, return_attention_mask=True, return_tensors="np"
    )
    # On some CPUs theirs are 3.1e-5 from what float64 gives, ours 4.5e-6.
    np.testing.assert_allclose(mel.features, theirs["input_features"][0], atol=5e-5)
    np.testing.assert_array_equal(mel_filters(num_mels, 400), extractor.mel_filters)
    assert mel.num_valid == theirs["attention_mask"][0].sum()
    assert mel.features.dtype == np.float32
    assert not mel.features.flags.writeable


def test_a_tone_is_loudest_in_its_own_band():
    tone = Audio(np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000).astype(np.float32))

    mel = WhisperProcessor(80).audio(tone)

    band = mel.features[:, 50].argmax()
    assert np.abs(mel_filters(80, 400)[:, band].argmax() * 40 - 1000) <= 40  # bins of 40 Hz


@pytest.mark.parametrize(("frames", "tokens"), [(3000, 750), (100, 25), (4, 1), (3, 1), (1, 0)])
def test_qwen2_audio_counts_its_tokens_by_the_sound(frames, tokens):
    assert pooled_tokens(frames) == tokens
    assert WhisperProcessor(pools=True).audio(clip(frames * 160)).num_tokens == tokens
    assert WhisperProcessor().audio(clip(frames * 160)).num_tokens == 1500


def test_too_long_a_clip_is_refused():
    with pytest.raises(TooLarge, match=r"lasts 30\.1 s; this model hears 30 s at once"):
        WhisperProcessor().audio(clip(481_600))


def test_settings_come_from_the_folder(tmp_path):
    config = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "Qwen2AudioProcessor",
        "feature_size": 128,
        "chunk_length": 30,
        "hop_length": 160,
        "n_fft": 400,
        "sampling_rate": 16000,
        "padding_value": 0.0,
    }
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(config))

    found = load_processors(tmp_path)

    assert found.audio == WhisperProcessor(num_mels=128, pools=True)
    assert found.vision is None
    for key, value in (
        ("sampling_rate", 8000), ("n_fft", 401), ("dither", 0.1),
        ("feature_extractor_type", "Wav2Vec2FeatureExtractor"),
    ):  # fmt: skip
        path.write_text(json.dumps({**config, key: value}))
        with pytest.raises(ConfigError, match=key):
            load_processors(tmp_path)


@pytest.mark.model
def test_the_published_configuration_of_whisper_is_read(sounds):
    folder = sounds.parent / "processors" / "whisper-large-v3"

    assert load_processors(folder).audio == WhisperProcessor(num_mels=128)
