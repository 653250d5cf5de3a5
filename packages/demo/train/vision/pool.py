"""Batches of rows, written to files by processes while the training reads them."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from corpus import render_chat
from numpy.typing import NDArray
from spaninfer.bench.pictures.atlas import Atlas
from spaninfer.bench.pictures.canvas import Style
from spaninfer.bench.pictures.scene import GROUND, NUM_SPRITES, NUM_WAVES, SPRITE, WAVE, Scene
from spaninfer.bench.pictures.world import CELL, HELD_OUT, draw
from stories.chats import chapters, draw_chat, plain_story
from tokenizers import Tokenizer

from vision.conversations import KINDS, Document, Writer

MAX_CELLS = 50
MAX_PAIRS = 4
BATCHES_PER_FILE = 8
_WAIT_S = 0.2
SEED = 20261123

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows of a batch: `clips` and `pictures` short ones of one scene each, and `texts` long ones,
    mostly text, with up to `scenes` pictures each."""

    clips: int = 96
    pictures: int = 384
    short_len: int = 256
    texts: int = 12
    text_len: int = 4096
    scenes: int = 8


def write_pool(folder: Path, tokenizer: Path, sizes: Sizes, *, files: range, processes: int) -> Any:
    """Start processes that write the numbered files to folder; close the pool to stop them."""
    pool = get_context("spawn").Pool(processes, _one_thread_each)
    job = partial(_write_file, folder, tokenizer, sizes)
    return pool, pool.map_async(job, files, chunksize=1)


def outlines(style: Style, folder: Path, *, processes: int) -> NDArray[np.float32]:
    """Return all outlines of a style, one after another; they are kept in folder."""
    path = folder / f"outlines-{style.is_held_out}.npy"
    if not path.exists():
        atlas = Atlas(style.is_held_out, style.fonts)
        with get_context("spawn").Pool(processes, _one_thread_each) as pool:
            made = pool.map(atlas.outline, range(atlas.count), chunksize=64)
        np.save(path, np.concatenate([each.reshape(-1) for each in made]))
    found: NDArray[np.float32] = np.load(path)
    return found


def _write_file(folder: Path, tokenizer: Path, sizes: Sizes, number: int) -> None:
    path = folder / f"batches-{number:05}.npz"
    if path.exists():
        return
    writer = Writer(Tokenizer.from_file(str(tokenizer)), Random(f"{SEED}/{number}"))
    batches = []
    for _ in range(BATCHES_PER_FILE):
        parent = parent_process()
        if parent is not None and not parent.is_alive():  # killed: nobody will read the file
            raise SystemExit
        batches.append(batch(writer, sizes))
    arrays = {name: np.stack([each[name] for each in batches]) for name in batches[0]}
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        np.savez(file, **arrays)
    draft.rename(path)


def batch(writer: Writer, sizes: Sizes) -> Arrays:
    """Return one batch: clips first, then pictures; and the long rows with "long_" before names."""
    kinds, weights = list(KINDS), list(KINDS.values())
    rng, short_len = writer.rng, sizes.short_len
    rows = [_fitting(writer, ["clip"], short_len) for _ in range(sizes.clips)]
    for _ in range(sizes.pictures):
        if rng.random() < 0.02:
            rows.append(writer.nothing_to_see())
        else:
            rows.append(_fitting(writer, rng.choices(kinds, weights), short_len))
    long = [_long_row(writer, sizes) for _ in range(sizes.texts)]
    short_arrays = arrays_of(rows, short_len, slots=1)
    long_arrays = arrays_of(long, sizes.text_len, slots=sizes.scenes)
    return short_arrays | {f"long_{name}": value for name, value in long_arrays.items()}


def held_out(tokenizer: Path, kinds: dict[str, int], length: int) -> tuple[list[str], Arrays]:
    """Return single questions about held-out scenes, `kinds` times of each, and their skills."""
    writer = Writer(Tokenizer.from_file(str(tokenizer)), Random("held out"))
    rows, skills = [], []
    for kind, count in kinds.items():
        for number in range(count):
            rng = Random(f"held out/{kind}/{number}")
            drawn = draw(kind, rng, HELD_OUT)
            asked = rng.choice(drawn.asked)
            rows.append(writer.question(drawn, asked))
            skills.append(asked.skill)
    return skills, arrays_of(rows, length, slots=1)


def arrays_of(rows: list[Document], length: int, *, slots: int) -> Arrays:
    """Return documents as arrays of rows cut to length; `slots` scenes for each row."""
    count = len(rows)
    ids = np.zeros((count, length + 1), np.int16)  # the vocabulary fits 15 bits
    target = np.zeros((count, length + 1), np.uint8)
    positions = np.zeros((count, 3, length + 1), np.int16)
    scenes = _Scenes(count * slots)
    for number, row in enumerate(rows):
        used = min(len(row.ids), length + 1)
        ids[number, :used] = row.ids[:used]
        target[number, :used] = row.is_target[:used]
        positions[number, :, :used] = np.array(row.positions[:used]).T
        for at, (scene, places) in enumerate(row.scenes):
            scenes.put(number * slots + at, scene, [number * length + place for place in places])
    return {
        "ids": ids,
        "target": target[:, 1:],
        "positions": positions[:, :, :-1],
        **scenes.arrays,
    }


class _Scenes:
    """Arrays of scenes, empty at first: rows, columns and pairs zero, places -1."""

    def __init__(self, count: int) -> None:
        self.arrays: Arrays = {
            "sprites": np.zeros((count, NUM_SPRITES, len(SPRITE)), np.float32),
            "ground": np.zeros((count, len(GROUND)), np.float32),
            "waves": np.zeros((count, NUM_WAVES, len(WAVE)), np.float32),
            "grid": np.zeros((count, 3), np.int16),  # pairs, rows and columns of cells
            "times": np.zeros((count, MAX_PAIRS, 2), np.float32),
            "places": np.full((count, MAX_CELLS), -1, np.int32),
        }

    def put(self, at: int, scene: Scene, places: list[int]) -> None:
        arrays = self.arrays
        arrays["sprites"][at], arrays["ground"][at] = scene.sprites, scene.ground
        arrays["waves"][at] = scene.waves
        times = np.array(scene.times_s if scene.is_clip else (0.0, 0.0)).reshape(-1, 2)
        arrays["grid"][at] = len(times), scene.height // CELL, scene.width // CELL
        arrays["times"][at, : len(times)] = times
        arrays["places"][at, : len(places)] = places


def _fitting(writer: Writer, kinds: list[str], length: int) -> Document:
    """Return a conversation that fits a row; one that does not is drawn anew."""
    while True:
        document = writer.pictures(kinds, length)
        if len(document.ids) <= length + 1:
            return document


def _long_row(writer: Writer, sizes: Sizes) -> Document:
    """Return documents in a row, the last one cut: texts, and conversations about pictures."""
    row, rng = Document(), writer.rng
    kinds, weights = list(KINDS), list(KINDS.values())
    while len(row.ids) <= sizes.text_len:
        room = sizes.text_len - len(row.ids)
        num_scenes = min(rng.choice((1, 1, 2, 3, 5)), sizes.scenes - len(row.scenes))
        if rng.random() < 0.25 and num_scenes and room > 220 * num_scenes:
            row.append(writer.pictures(rng.choices(kinds, weights, k=num_scenes), 170 * num_scenes))
        elif rng.random() < 0.05:
            row.append(writer.nothing_to_see())
        else:
            row.append(writer.text(_text(rng)))
    return row


def _text(rng: Random) -> str:
    """Return a document of the first stage's last mix, without the books."""
    kind = rng.choices(("chat", "plain", "chapters"), (82, 14, 2))[0]
    if kind == "chat":
        return render_chat(draw_chat(rng))
    return plain_story(rng) if kind == "plain" else chapters(rng)[0]


def read_pool(folder: Path) -> Iterator[Arrays]:
    """Yield batches for ever: of new files first, of those read before when there are none."""
    seen: list[Path] = []
    rng = Random(SEED)
    while True:
        fresh = sorted(set(folder.glob("batches-*.npz")) - set(seen))
        if not fresh and not seen:
            time.sleep(_WAIT_S)  # for the first file
            continue
        path = fresh[0] if fresh else rng.choice(seen)
        if fresh:
            seen.append(path)
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        for number in range(BATCHES_PER_FILE):
            yield {name: value[number] for name, value in arrays.items()}


def _one_thread_each() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes already fill the machine
