"""Control tokens of the first Qwen models, which no file of theirs lists.

They follow the pieces of qwen.tiktoken. Which there are is decided by config.json: models that see
and hear have more. Source: tokenization_qwen.py of Qwen-7B, Qwen-VL and Qwen-Audio.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from spaninfer_engine.text.special import SpecialToken

_CONTROLS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    *(f"<|extra_{number}|>" for number in range(205)),
)
_GROUNDING = ("<ref>", "</ref>", "<box>", "</box>", "<quad>", "</quad>")
_IMAGE = ("<img>", "</img>", "<imgpad>")

_LANGUAGES = ("unknown", "en", "zh", "de", "es", "ko", "fr", "ja", "it", "zh_tr")
_AUDIO_PAD = "[[[AUDIO:modality]]]"
_TASKS = (
    *("startoftranscript", "startofanalysis", "translate", "transcribe", "caption", "keyword"),
    *_LANGUAGES,
    *("notimestamps", "sil", "timestamps"),
    *(f"{hundredths / 100:.2f}" for hundredths in range(3001)),  # seconds
    *("caption_audiocaps", "caption_clotho", "audioset_ontology", "caption_plain", "itn", "wo_itn"),
    *("startofentityvalue", "endofentityvalue", "startofentitytype", "endofentitytype"),
    *("named_entity_recognition", "audio_grounding", "startofword", "endofword", "delim"),
    *("emotion_recognition", "music_description", "note_analysis", "pitch"),
    *(f"midi_pitch_{pitch}" for pitch in range(128)),
    "velocity",
    *(f"midi_velocity_{velocity}" for velocity in range(128)),
    *("sonic", "instrument", "speaker_meta", "song_meta", "question", "answer", "choice"),
    *("scene", "event", "vocal_classification", "speech_understanding", "scenario", "action"),
    *("entities", "speech_edit"),
)
_AUDIO = ("<audio>", "</audio>")


def special_tokens(num_pieces: int, media: Collection[str]) -> list[SpecialToken]:
    """Return the tokens behind that many pieces, of a model whose config.json has the keys `media`.

    What a model of `visual` says about places in pictures, and one of `audio` about its task, are
    words of conversations: users write them, and answers show them.
    """
    tokens = enumerate(_tokens(media), num_pieces)
    return [SpecialToken(token_id, text, is_text=is_text) for token_id, (text, is_text) in tokens]


def _tokens(media: Collection[str]) -> Iterator[tuple[str, bool]]:
    """Yield texts in order: are they words of conversations?"""
    yield from ((text, False) for text in _CONTROLS)
    if "visual" in media:
        yield from ((text, True) for text in _GROUNDING)
        yield from ((text, False) for text in _IMAGE)
    if "audio" in media:
        yield _AUDIO_PAD, False
        yield from ((f"<|{task}|>", True) for task in _TASKS)
        yield from ((text, False) for text in _AUDIO)
