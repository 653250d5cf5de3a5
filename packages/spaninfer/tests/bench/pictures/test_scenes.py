"""Scenes against what can be counted and measured in the pictures themselves."""

import hashlib
from random import Random

import numpy as np
import pytest
from spaninfer.bench.pictures.atlas import Atlas
from spaninfer.bench.pictures.colours import BOXES, CLASHES, shade
from spaninfer.bench.pictures.draw import frames_of
from spaninfer.bench.pictures.scene import SPRITE
from spaninfer.bench.pictures.shape_scenes import NUMBERS
from spaninfer.bench.pictures.world import HELD_OUT, SCENES, TRAINING, draw

ATLAS = Atlas(HELD_OUT.is_held_out, HELD_OUT.fonts)


def drawn_scenes(kind, count, style=HELD_OUT):
    return [draw(kind, Random(f"test/{kind}/{number}"), style) for number in range(count)]


def expected(drawn, question):
    (found,) = {asked.expected for asked in drawn.asked if asked.question in question}
    return found


def regions(mask):
    """Return how many connected regions, of eight neighbours, a mask has."""
    names = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        wide = np.pad(names, 1)
        around = [
            wide[1 + down : wide.shape[0] - 1 + down, 1 + right : wide.shape[1] - 1 + right]
            for down in (-1, 0, 1)
            for right in (-1, 0, 1)
        ]
        spread = np.where(mask, np.max(around, axis=0), 0)
        if (spread == names).all():
            return len(np.unique(names)) - 1
        names = spread


def ink(drawn):
    """Return where a scene's picture differs from its ground alone."""
    scene = drawn.scene
    bare = type(scene)(
        scene.height, scene.width, np.zeros_like(scene.sprites), scene.ground, scene.waves
    )
    frames = [frames_of(each, ATLAS)[0].astype(int) for each in (scene, bare)]
    return np.abs(frames[0] - frames[1]).max(axis=-1) > 24


def test_the_same_seed_draws_the_same_numbers_and_asks_the_same():
    digest = hashlib.sha256()
    for kind in SCENES:
        for drawn in drawn_scenes(kind, 20):
            digest.update(np.round(drawn.scene.sprites[:, 1:3]).astype(np.int32).tobytes())
            digest.update("".join(each.question + each.answer for each in drawn.asked).encode())

    assert digest.hexdigest()[:16] == "7aeeb7e13f59090e"


@pytest.mark.parametrize("kind", SCENES)
def test_every_answer_is_right_by_its_own_rule(kind):
    for drawn in drawn_scenes(kind, 150):
        for asked in drawn.asked:
            assert asked.is_right(asked.answer), asked


def test_as_many_shapes_are_asked_for_as_stand_apart_in_the_picture():
    ways = {"How many shapes are there?", "How many shapes do you see?", "Count the shapes."}

    for drawn in drawn_scenes("shapes", 25):
        assert NUMBERS[regions(ink(drawn))] == expected(drawn, ways)


def test_the_tallest_bar_has_the_colour_of_the_topmost_ink():
    ways = {"Which bar is the tallest?", "What colour is the tallest bar?"}

    for drawn in drawn_scenes("chart", 25):
        bars = [row for row in drawn.scene.sprites if row[SPRITE["colour"]] > 0]
        top = min(bars, key=lambda row: row[SPRITE["y"]] - 1 / row[SPRITE["d"]])
        picture = frames_of(drawn.scene, ATLAS)[0]
        seen = picture[int(top[SPRITE["y"]]), int(top[SPRITE["x"]])] / 255
        said = expected(drawn, ways)
        named = [tuple(BOXES)[int(row[SPRITE["colour"]]) - 1] for row in bars]
        paints = [row[SPRITE["red"] : SPRITE["blue"] + 1] for row in bars]
        near = min(zip(named, paints, strict=True), key=lambda each: np.abs(each[1] - seen).max())
        assert near[0] == said


def test_what_moves_is_seen_to_move_that_way():
    for drawn in drawn_scenes("clip", 25):
        (way,) = {
            asked.expected
            for asked in drawn.asked
            if asked.skill == "motion" and asked.question.startswith(("Which way", "Where does"))
        } or {None}
        if way is None:
            continue
        frames = frames_of(drawn.scene, ATLAS).astype(float)
        changed = np.abs(frames[-1] - frames[0]).max(axis=-1) > 24
        if way == "not":
            assert not changed.any()
            continue
        still = np.median(frames, axis=(1, 2))[0]
        places = []
        for frame in (frames[0], frames[-1]):
            rows, columns = np.nonzero(changed & (np.abs(frame - still).max(axis=-1) > 24))
            places.append((columns.mean(), rows.mean()))
        across, down = places[1][0] - places[0][0], places[1][1] - places[0][1]
        if abs(across) > abs(down):
            assert way == ("to the right" if across > 0 else "to the left")
        else:
            assert way == ("down" if down > 0 else "up")


def test_held_out_shades_and_fonts_are_none_of_the_training_ones():
    rng = Random(1)
    shades = {
        held_out: {shade("green", rng, is_held_out=held_out) for _ in range(500)}
        for held_out in (True, False)
    }
    nearest = min(
        sum(abs(a - b) for a, b in zip(one, other, strict=True))
        for one in shades[True]
        for other in list(shades[False])[:50]
    )
    assert nearest > 0

    glyphs = [Atlas(style.is_held_out, style.fonts).outline(40) for style in (TRAINING, HELD_OUT)]
    assert np.abs(glyphs[0] - glyphs[1]).max() > 0.05


def test_no_shape_stands_before_a_ground_that_hides_it():
    for drawn in drawn_scenes("shapes", 150, TRAINING):
        (ground,) = {asked.expected for asked in drawn.asked if asked.skill == "background"}
        for row in drawn.scene.sprites:
            if number := int(row[SPRITE["colour"]]):
                colour = tuple(BOXES)[number - 1]
                assert colour != ground
                assert frozenset((colour, ground)) not in CLASHES


def test_a_picture_is_drawn_larger_with_the_same_things_in_the_same_places():
    scene = drawn_scenes("shapes", 1)[0].scene

    small, large = frames_of(scene, ATLAS)[0], frames_of(scene, ATLAS, zoom=2.0)[0]

    assert large.shape == (2 * scene.height, 2 * scene.width, 3)
    halved = large.reshape(scene.height, 2, scene.width, 2, 3).mean(axis=(1, 3))
    assert np.abs(halved - small).mean() < 1.5
