"""The cache of prepared media: known files are not decoded again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from PIL import Image
from spaninfer_engine.preprocess import known as known_files
from spaninfer_engine.preprocess import processor as processing
from spaninfer_engine.preprocess.known import Decoded, FileDigests, KnownMedia, digest_of_file
from spaninfer_engine.preprocess.layout import MediaLayout
from spaninfer_engine.preprocess.parts import MediaPart
from spaninfer_engine.preprocess.prepared import PreparedMedia
from spaninfer_engine.preprocess.processor import MediaProcessor
from spaninfer_engine.request.media import TowerInput
from spaninfer_multimodal import load_processors


def made(num_values: int) -> PreparedMedia:
    features = np.zeros((1, num_values), np.float32)
    return PreparedMedia(TowerInput("image", features, 1, b"%d" % num_values))


def png(colour: tuple[int, int, int]) -> bytes:
    data = BytesIO()
    Image.new("RGB", (60, 90), colour).save(data, "PNG")
    return data.getvalue()


def _preparer(folder: Path, images: Mapping[str, Any]) -> MediaProcessor:
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    layout = MediaLayout(placeholders={"image": 1, "video": 2})
    return MediaProcessor(load_processors(folder), layout, tokenizer=None)  # type: ignore[arg-type]


@pytest.fixture
def preparer(tmp_path: Path) -> MediaProcessor:
    return _preparer(tmp_path, {"image_processor_type": "Qwen2VLImageProcessor"})


def test_the_least_recently_used_make_room() -> None:
    known = KnownMedia(max_bytes=40)
    one, two, three = made(4), made(5), made(2)
    known.put(b"1", one)
    known.put(b"2", two)
    assert known.get(b"1") is one

    known.put(b"3", three)

    assert (known.get(b"1"), known.get(b"2"), known.get(b"3")) == (one, None, three)


def test_what_alone_is_too_large_is_not_kept_and_counts_as_nothing() -> None:
    known = KnownMedia(max_bytes=40)
    known.put(b"1", made(10))
    known.put(b"large", made(100))
    known.put(b"1", made(10))

    assert known.get(b"large") is None
    assert known.get(b"1") is not None


def test_a_file_is_decoded_and_prepared_once(
    preparer: MediaProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []
    real = processing.decoded
    monkeypatch.setattr(processing, "decoded", lambda *a: decoded.append(a[0]) or real(*a))
    red, blue = png((200, 0, 0)), png((0, 0, 200))

    found = [
        preparer.prepare(MediaPart("image", data, "here"))
        for data in (red, blue, red, bytearray(blue))
    ]

    assert len(decoded) == 2
    assert found[0] is found[2]
    assert found[1] is found[3]
    assert found[0].input.digest != found[1].input.digest


def test_few_threads_prepare_media_at_a_time_and_the_others_find_what_they_made(
    preparer: MediaProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = Barrier(processing.AT_ONCE, timeout=60)
    decoded = []
    real = processing.decoded

    def decoded_together(*asked: Any) -> Any:
        decoded.append(asked)
        together.wait()
        return real(*asked)

    monkeypatch.setattr(processing, "decoded", decoded_together)
    part = MediaPart("image", png((0, 200, 0)), "here")

    with ThreadPoolExecutor(12) as clients:
        found = list(clients.map(lambda _: preparer.prepare(part), range(12)))

    assert len(decoded) == processing.AT_ONCE
    assert len({each.input.digest for each in found}) == 1


def test_other_options_are_another_preparation(preparer: MediaProcessor) -> None:
    data = png((0, 90, 0))
    small, large = (
        preparer.prepare(MediaPart("image", data, "here", {"max_pixels": size, "min_pixels": 784}))
        for size in (4 * 784, 16 * 784)
    )

    assert small.input.num_tokens < large.input.num_tokens


def test_what_was_decoded_elsewhere_is_known_by_its_file(preparer: MediaProcessor) -> None:
    data = png((90, 0, 90))
    digest = digest_of_file("image", data, {}, "")
    decoded = processing.decoded(MediaPart("image", data, "here"), data, preparer.sampling({}))

    first = preparer.prepare(MediaPart("image", Decoded(decoded, digest), "here"))

    assert preparer.known.get(digest) is first
    assert preparer.prepare(MediaPart("image", data, "here")) is first
    assert preparer.prepare(MediaPart("image", first, "here")) is first


def test_a_picture_alone_and_one_of_several_are_known_apart_where_they_are_prepared_differently(
    tmp_path: Path,
) -> None:
    images = {
        "image_processor_type": "LlavaOnevisionImageProcessor",
        "size": {"height": 56, "width": 56},
        "image_grid_pinpoints": [[56, 112]],
        "num_image_tokens": 64,
        "vision_aspect_ratio": "anyres_max_9",
    }
    preparer, data = _preparer(tmp_path, images), png((0, 90, 0))

    alone, one_of_several, again = (
        preparer.prepare(MediaPart("image", data, "here", is_alone=is_alone))
        for is_alone in (True, False, True)
    )

    assert alone is again
    assert alone.input.num_tokens > one_of_several.input.num_tokens == 64 + 1


def test_digests_tell_kinds_options_tenants_and_urls_from_files_apart() -> None:
    given = [
        ("image", b"data:x", {}, ""),
        ("video", b"data:x", {}, ""),
        ("image", "data:x", {}, ""),
        ("image", b"data:x", {"fps": 1}, ""),
        ("image", b"data:y", {}, ""),
        ("image", b"data:x", {}, "other"),
    ]

    assert len({digest_of_file(*each) for each in given}) == len(given)  # type: ignore[arg-type]


def test_a_file_seen_before_is_compared_and_every_other_is_digested() -> None:
    digests = FileDigests()
    photo = "data:image/png;base64," + "A" * 5000
    others = [
        photo.encode(),  # the same characters as bytes
        photo[:2000] + "B" + photo[2001:],  # another between the samples
        photo + "A",
    ]

    for file in (photo, *others, photo, "", *others):
        assert digests.of("image", file, {}, "") == digest_of_file("image", file, {}, "")
    given: list[tuple[Any, dict[str, float], str]] = [
        ("image", {}, "other"),
        ("image", {"max_pixels": 784}, ""),
        ("video", {}, ""),
    ]
    for kind, options, tenant in given:
        expected = digest_of_file(kind, photo, options, tenant)
        assert digests.of(kind, photo, options, tenant) == expected


def test_files_to_compare_with_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    digested: list[str] = []

    def noted(*given: Any) -> bytes:
        digested.append(given[1])
        return digest_of_file(*given)

    monkeypatch.setattr(known_files, "digest_of_file", noted)
    digests = FileDigests(max_bytes=25)
    files = [letter * 10 for letter in "abacab"] + ["d" * 26] * 2

    for file in files:
        digests.of("image", file, {}, "")

    # c takes the place of b, since a was seen again; d is too large to keep
    assert digested == [letter * 10 for letter in "abcb"] + ["d" * 26] * 2


def test_a_picture_is_kept_as_bytes_an_eighth_of_its_numbers(preparer: MediaProcessor) -> None:
    made = preparer.prepare(MediaPart("image", png((200, 0, 0)), "here")).input

    assert made.features.dtype == np.uint8
    assert made.numbers.dtype == np.float32
    assert made.numbers.nbytes == 8 * made.features.nbytes
