"""Placeholders of a rendered prompt become as many tokens as the media have; pure.

The template writes one placeholder per medium. Where frames of a video stand alone (Qwen3-VL), the
text gets one per frame first, each behind its time; where lines of an image end with a token
(Pixtral), one per line. The ids then get one per row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from spaninfer_multimodal import MediaRun, Positions, TextRun, mrope_positions

from spaninfer_engine.errors import TemplateError
from spaninfer_engine.preprocess.layout import MediaLayout
from spaninfer_engine.preprocess.prepared import PreparedMedia
from spaninfer_engine.request.media import MediaItem, MediaKind, PromptMedia
from spaninfer_engine.request.prompts import MediaPrompt
from spaninfer_engine.text.template import Prompt


@dataclass(frozen=True, slots=True)
class _Run:
    """One placeholder of the ids: how many tokens it becomes, and the grid of their positions."""

    item: int
    num_tokens: int
    grid_thw: tuple[int, int, int] | None
    step: float = 1.0


def expand_media(
    token_ids: Sequence[int], media: Sequence[PreparedMedia], layout: MediaLayout
) -> MediaPrompt:
    """Return a prompt whose placeholders are as many as the media's rows.

    `media` are in the order of the conversation. Raises TemplateError unless the ids have exactly
    one placeholder for each medium, or for each frame or line that stands alone.
    """
    kinds = {token_id: kind for kind, token_id in layout.placeholders.items()}
    waiting = {kind: _runs_of(kind, media, layout) for kind in layout.placeholders}
    found = [at for at, each in enumerate(token_ids) if each in kinds]
    _check_count(Counter(kinds[token_ids[at]] for at in found), waiting)
    ids: list[int] = []
    places: list[list[tuple[int, int]]] = [[] for _ in media]
    parts: list[TextRun | MediaRun] = []
    text_len = read = 0
    ahead = {kind: iter(runs) for kind, runs in waiting.items()}
    for at in found:
        ids += token_ids[read:at]
        text_len += at - read
        read = at + 1
        token_id = token_ids[at]
        run = next(ahead[kinds[token_id]])
        num_marks = len(layout.replaced_marks or ())
        places[run.item].append((len(ids) - num_marks // 2, run.num_tokens))
        ids += [token_id] * (run.num_tokens - num_marks)
        if run.grid_thw is None:
            text_len += run.num_tokens
            continue
        parts += [TextRun(text_len), MediaRun(run.grid_thw, layout.merge, run.step)]
        text_len = 0
    ids += token_ids[read:]
    text_len += len(token_ids) - read
    _check_marks(ids, places, layout)
    items = tuple(map(_item, media, places))
    if not layout.has_mrope:
        return MediaPrompt(ids, PromptMedia(items, bidirectional=layout.bidirectional))
    positions = mrope_positions([*parts, TextRun(text_len)])
    return MediaPrompt(ids, _with_positions(items, positions))


def _item(media: PreparedMedia, places: Sequence[tuple[int, int]]) -> MediaItem:
    return MediaItem(media.input, tuple(places))


def _with_positions(items: tuple[MediaItem, ...], positions: Positions) -> PromptMedia:
    ids = positions.ids.astype(np.int32)
    ids.setflags(write=False)
    return PromptMedia(items, ids, positions.delta)


def _runs_of(kind: MediaKind, media: Sequence[PreparedMedia], layout: MediaLayout) -> list[_Run]:
    """Return the runs of all media of a kind, in order."""
    return [
        run
        for index, each in enumerate(media)
        if each.input.kind == kind
        for run in _runs(index, each, layout)
    ]


def _runs(index: int, media: PreparedMedia, layout: MediaLayout) -> Iterator[_Run]:
    made = media.input
    if media.around:
        count = len(media.around) - 1
        yield from [_Run(index, made.num_tokens // count, None)] * count
    elif made.grid_thw is None or not layout.has_mrope:
        yield _Run(index, made.num_tokens, None)
    elif made.kind == "video" and layout.frame_marks is not None:
        frames, height, width = made.grid_thw
        for _ in range(frames):
            yield _Run(index, made.num_tokens // frames, (1, height, width))
    else:
        yield _Run(index, made.num_tokens, made.grid_thw, _step(media, layout))


def _step(media: PreparedMedia, layout: MediaLayout) -> float:
    """Return how far apart two rows of the time axis are."""
    if layout.tokens_per_second is None or media.seconds_per_grid is None:
        return 1.0
    return layout.tokens_per_second * media.seconds_per_grid


def _check_count(found: Counter[MediaKind], waiting: Mapping[MediaKind, Sequence[_Run]]) -> None:
    for kind, runs in waiting.items():
        if found[kind] != len(runs):
            raise TemplateError(
                f"the chat template wrote {found[kind]} placeholders of kind {kind} for "
                f"{len(runs)}: it drops or repeats parts; pass one that writes each once with "
                "--chat-template FILE"
            )


def _check_marks(
    ids: Sequence[int], places: Sequence[Sequence[tuple[int, int]]], layout: MediaLayout
) -> None:
    """Raise TemplateError where other tokens would be replaced than those around a placeholder."""
    marks = layout.replaced_marks
    for first, count in (run for runs in places for run in runs if marks is not None):
        if first < 0 or marks != tuple(ids[first : first + count : count - 1]):
            raise TemplateError(
                "the chat template writes a placeholder without the tokens that begin and end a "
                "medium; pass one that writes them with --chat-template FILE"
            )


def expand_frames(
    prompt: Prompt, marks: tuple[str, str, str], times_s: Sequence[Sequence[float]]
) -> Prompt:
    """Return a prompt in which each video's placeholder is one per frame, behind the frame's time.

    `marks` are the texts before a frame, of the placeholder, and behind a frame; those that the
    template wrote around the video go. Only what the template itself wrote counts.
    """
    start, placeholder, end = marks
    pieces: list[tuple[str, bool]] = []
    videos = iter(times_s)
    for text, is_trusted in _pieces(prompt):
        if not is_trusted:
            pieces.append((text, False))
            continue
        for number, part in enumerate(text.split(placeholder)):
            if number:
                frames = next(videos, ())
                pieces[-1] = pieces[-1][0].removesuffix(start), True
                part = part.removeprefix(end)
                framed = f"{start}{placeholder}{end}"
                pieces.append(("".join(f"<{at:.1f} seconds>{framed}" for at in frames), True))
            pieces.append((part, True))
    return _joined(pieces)


def expand_runs(
    prompt: Prompt, written: str, placeholder: str, around: Sequence[Sequence[str]]
) -> Prompt:
    """Return a prompt in which what the template has `written` for each image is a placeholder per
    run of its tokens, with the texts `around` them in front, between and behind.
    """
    images = iter(around)
    pieces = []
    for text, is_trusted in _pieces(prompt):
        if is_trusted:
            first, *others = text.split(written)
            text = first + "".join(placeholder.join(next(images, ())) + part for part in others)
        pieces.append((text, is_trusted))
    return _joined(pieces)


def wrap_images(prompt: Prompt, marks: tuple[str, str, str], around: str) -> Prompt:
    """Return a prompt in which what the template wrote for an image stands in front of its
    placeholder, and an end behind it, with text around (Gemma 3).

    `marks` are the texts before an image, of the placeholder, and behind an image.
    """
    start, placeholder, end = marks
    whole = f"{around}{start}{placeholder}{end}{around}"
    return _joined(
        [
            (text.replace(start, whole) if is_trusted else text, is_trusted)
            for text, is_trusted in _pieces(prompt)
        ]
    )


def _pieces(prompt: Prompt) -> Iterator[tuple[str, bool]]:
    """Yield the text of a prompt in pieces: did the template write it?"""
    at = 0
    for first, last in prompt.trusted:
        yield prompt.text[at:first], False
        yield prompt.text[first:last], True
        at = last
    yield prompt.text[at:], False


def _joined(pieces: Sequence[tuple[str, bool]]) -> Prompt:
    ranges: list[tuple[int, int]] = []
    at = 0
    for text, is_trusted in pieces:
        if is_trusted and text:
            first = ranges.pop()[0] if ranges and ranges[-1][1] == at else at
            ranges.append((first, at + len(text)))
        at += len(text)
    return Prompt("".join(text for text, _ in pieces), tuple(ranges))
