"""The training text: documents drawn by seed, tokenised by many processes into 16-bit ids."""

import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from books import Book, draw_fable, draw_passage, read_books, read_fables
from numpy.typing import NDArray
from stories.chat import Chat
from stories.chats import chapters, draw_chat, plain_story
from tokenizers import Tokenizer

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_BATCH = 256  # documents per call of the tokenizer
_AESOP = "aesop_fables_v-s-vernon-jones.txt"


@dataclass(frozen=True, slots=True)
class Shard:
    """Which documents a shard holds: its mix, and a number that, with the seed, draws them."""

    mix: str
    number: int
    num_tokens: int


@cache
def settings() -> dict[str, Any]:
    """Return data.toml."""
    return tomllib.loads((Path(__file__).parent / "data.toml").read_text(encoding="utf-8"))


def render_chat(chat: Chat) -> str:
    """Return a conversation as the chat template writes it (export.CHAT_TEMPLATE)."""
    return "".join(f"{TURN_START}{turn.role}\n{turn.text}{TURN_END}\n" for turn in chat)


def documents(mix: str, number: int, books_dir: Path) -> Iterator[str]:
    """Yield the endless documents of a shard, each with its end-of-text mark."""
    rng = Random(f"{settings()['seed']}/{mix}/{number}")
    books, fables = _library(books_dir)
    kinds, shares = zip(*settings()["mixes"][mix].items(), strict=True)
    while True:
        kind = rng.choices(kinds, shares)[0]
        if kind == "chat":
            text = render_chat(draw_chat(rng))
        elif kind == "plain":
            text = plain_story(rng)
        elif kind == "chapters":
            text = chapters(rng)[0]
        elif kind == "book":
            text = draw_passage(books, rng)
        else:
            text = render_chat(draw_fable(fables, rng))
        yield text + END_OF_TEXT


def build(folder: Path, books_dir: Path, *, processes: int, scale: float) -> None:
    """Write main.npy, final.npy and held_out.npy to folder, ids of the tokenizer that lies there.

    scale shrinks every shard, for a trial. The order of the documents does not depend on processes.
    """
    sizes = settings()["shards"]
    num_tokens = int(sizes["tokens_per_shard"] * scale)
    with get_context("spawn").Pool(processes, _one_thread_each) as pool:
        for name in ("main", "final", "held_out"):
            mix = "main" if name == "held_out" else name
            first = 1_000_000 if name == "held_out" else 0  # numbers that no training shard has
            shards = [Shard(mix, first + i, num_tokens) for i in range(sizes[name])]
            jobs = [(shard, folder / "tokenizer.json", books_dir) for shard in shards]
            np.save(folder / f"{name}.npy", np.concatenate(pool.starmap(encode_shard, jobs)))


def encode_shard(shard: Shard, tokenizer_path: Path, books_dir: Path) -> NDArray[np.uint16]:
    """Return the ids of a shard's documents, as many documents as reach its number of tokens."""
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    texts = documents(shard.mix, shard.number, books_dir)
    pieces: list[NDArray[np.uint16]] = []
    count = 0
    while count < shard.num_tokens:
        batch = [next(texts) for _ in range(_BATCH)]
        for encoding in tokenizer.encode_batch_fast(batch):
            pieces.append(np.array(encoding.ids, dtype=np.uint16))
            count += len(pieces[-1])
    return np.concatenate(pieces)


def _one_thread_each() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes already fill the machine


@cache
def _library(books_dir: Path) -> tuple[list[Book], list[tuple[str, str]]]:
    return read_books(books_dir, settings()["books"]), read_fables(books_dir / _AESOP)
