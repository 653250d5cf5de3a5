"""Audio of every codec, rate and number of channels becomes 16 000 mono samples per second."""

import wave

import av
import numpy as np
import pytest
from drawn import audio_file, damaged, image_file, still, tone, video_file, wav_file
from spaninfer_multimodal import AudioLimits, MediaError, TooLarge, Unreadable, decode_audio

CODECS = {
    "wav 16 bit": ("pcm_s16le", "wav"),
    "wav 24 bit": ("pcm_s24le", "wav"),
    "wav float": ("pcm_f32le", "wav"),
    "wav mu-law": ("pcm_mulaw", "wav"),
    "mp3": ("libmp3lame", "mp3"),
    "flac": ("flac", "flac"),
    "opus": ("libopus", "ogg"),
    "vorbis": ("vorbis", "ogg"),
    "aac": ("aac", "adts"),
    "mp4": ("aac", "mp4"),
    "webm": ("libopus", "webm"),
}


def likeness(samples, expected):
    """Correlation at the best shift: coders delay."""
    size = len(samples) + len(expected)
    spectra = np.fft.rfft(samples, size) * np.conj(np.fft.rfft(expected, size))
    return np.fft.irfft(spectra, size).max() / np.linalg.norm(samples) / np.linalg.norm(expected)


def test_16_bit_samples_at_16_khz_are_kept_exactly():
    samples = np.random.default_rng(0).integers(-32768, 32768, 5000).astype(np.int16)
    data = wav_file(samples[:, None] / 32767, 16_000)
    written = np.round(samples / 32767 * 32767).astype(np.int16)

    audio = decode_audio(data)

    np.testing.assert_array_equal(audio.samples, (written / 32768).astype(np.float32))
    assert audio.duration_s == 5000 / 16_000
    assert not audio.samples.flags.writeable


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_gives_the_tone_that_was_coded(codec):
    data = audio_file(tone(48_000, 2), 48_000, *CODECS[codec])

    audio = decode_audio(data)

    assert audio.samples.dtype == np.float32
    assert 0.95 < audio.duration_s < 1.1
    assert likeness(audio.samples, tone(16_000)[:, 0]) > 0.99


@pytest.mark.parametrize("rate", [8_000, 11_025, 44_100, 96_000])
@pytest.mark.parametrize("num_channels", [1, 2])
def test_every_rate_becomes_16_khz(rate, num_channels):
    audio = decode_audio(wav_file(tone(rate, num_channels), rate))

    assert len(audio.samples) == pytest.approx(16_000, abs=40)
    assert likeness(audio.samples, tone(16_000)[:, 0]) > 0.9995


def test_channels_are_mixed_evenly():
    samples = np.concatenate([tone(16_000), np.zeros((16_000, 1))], axis=1)

    audio = decode_audio(wav_file(samples, 16_000))

    np.testing.assert_allclose(audio.samples, samples.mean(axis=1), atol=1e-4)


def test_the_sound_of_six_channels_is_read():
    audio = decode_audio(audio_file(tone(48_000, 6), 48_000, "flac", "flac"))

    assert likeness(audio.samples, tone(16_000)[:, 0]) > 0.99


def test_frequencies_above_8_khz_do_not_fold_back():
    audio = decode_audio(wav_file(tone(48_000, hertz=12_000), 48_000))

    assert np.abs(audio.samples[500:-500]).max() < 0.01


def test_too_long_a_clip_is_refused():
    data = wav_file(tone(16_000, seconds=1.5), 16_000)

    with pytest.raises(TooLarge, match="longer than 1 s"):
        decode_audio(data, AudioLimits(max_duration_s=1.0))
    with pytest.raises(TooLarge, match="at most 1000 are accepted"):
        decode_audio(data, AudioLimits(max_bytes=1000))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the audio is empty"),
        (b"words", "of an unknown format, not MP4, WebM, AVI, WAV, MP3, FLAC, OGG or AAC"),
        (image_file(still()), "PNG, which holds no audio"),
        (video_file(2), "the MP4 file has no audio stream"),
        (wav_file(tone(16_000, seconds=0), 16_000), "no samples"),
        (b"fLaC" + bytes(100), "the FLAC audio is damaged"),
    ],
    ids=["empty", "text", "image", "silent video", "no samples", "damaged"],
)
def test_what_is_no_audio_is_refused_with_its_cause(data, message):
    with pytest.raises(Unreadable, match=message):
        decode_audio(data)


@pytest.mark.parametrize("codec", ["mp3", "flac", "opus", "wav 16 bit"])
def test_damaged_data_never_raises_anything_but_our_errors(codec):
    outcomes = set()

    for data in damaged(audio_file(tone(16_000, seconds=0.3), 16_000, *CODECS[codec]), 40, 200):
        try:
            outcomes.add(type(decode_audio(data, AudioLimits(max_duration_s=60))))
        except MediaError as error:
            outcomes.add(type(error))

    assert Unreadable in outcomes


@pytest.mark.model
def test_real_wav_files_have_the_samples_that_the_standard_library_reads(sounds):
    for name in ("jfk.wav", "1272-141231-0002.wav", "sine_mono_s16.wav"):
        with wave.open(str(sounds / name)) as file:
            expected = np.frombuffer(file.readframes(10**9), "<i2") / 32768

        audio = decode_audio((sounds / name).read_bytes())

        np.testing.assert_array_equal(audio.samples, expected.astype(np.float32))


def resampled(samples, rate):
    """Samples at 16 kHz by definition: the same spectrum, cut off or continued with zeros."""
    count = round(len(samples) * 16_000 / rate)
    spectrum, wanted = np.fft.rfft(samples), np.zeros(count // 2 + 1, complex)
    kept = min(len(spectrum), len(wanted))
    wanted[:kept] = spectrum[:kept]
    return np.fft.irfft(wanted, count) * count / len(samples)


@pytest.mark.model
def test_a_real_telephone_recording_has_the_samples_between_those_of_its_file(sounds):
    file = sounds / "1272-128104-0004-8k.wav"
    with wave.open(str(file)) as read:
        written = np.frombuffer(read.readframes(10**9), "<i2") / 32768

    audio = decode_audio(file.read_bytes())

    expected = resampled(written, 8_000)
    assert len(audio.samples) == len(expected) == 2 * len(written)
    error = audio.samples - expected
    assert np.linalg.norm(error) < 0.02 * np.linalg.norm(expected)


@pytest.mark.model
def test_a_real_mp3_has_what_ffmpeg_decodes_mixed_and_resampled_by_definition(sounds):
    with av.open(str(sounds / "bear.mp3")) as read:
        (stream,) = read.streams.audio
        decoded = np.concatenate([frame.to_ndarray() for frame in read.decode(stream)], axis=1)
        rate = stream.rate

    audio = decode_audio((sounds / "bear.mp3").read_bytes())

    expected = resampled(decoded.mean(0), rate)
    assert abs(len(audio.samples) - len(expected)) <= 1
    inner = slice(2000, len(expected) - 2000)  # of the ends, filters know less
    assert np.corrcoef(audio.samples[inner], expected[inner])[0, 1] > 0.999


@pytest.mark.model
def test_one_recording_sounds_alike_in_every_format(sounds):
    wav, flac, mp3 = (
        decode_audio((sounds / f"1272-141231-0002.{name}").read_bytes()).samples
        for name in ("wav", "flac", "mp3")
    )

    assert likeness(flac, wav) > 0.9999
    assert likeness(mp3, wav) > 0.99


@pytest.mark.model
def test_every_real_file_is_read(sounds):
    seconds = {file.name: decode_audio(file.read_bytes()).duration_s for file in sounds.iterdir()}

    assert seconds["1272-128104-0004-8k.wav"] == pytest.approx(29.4)
    assert min(seconds.values()) > 3
