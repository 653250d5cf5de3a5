"""Conversations about drawn pictures, as ids with positions, targets and the scenes they show."""

from dataclasses import dataclass, field
from functools import cache
from random import Random

from corpus import END_OF_TEXT, TURN_END, TURN_START, render_chat
from spaninfer.bench.pictures.asked import Asked, Drawn
from spaninfer.bench.pictures.outside_scenes import QUESTIONS
from spaninfer.bench.pictures.scene import Scene
from spaninfer.bench.pictures.world import CELL, TRAINING, draw
from stories.chats import draw_chat
from tokenizers import Tokenizer

VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE_PAD, VIDEO_PAD = "<|image_pad|>", "<|video_pad|>"
NO_PICTURE = "I see no picture. Please give me one."

KINDS = {"shapes": 60, "number": 16, "word": 10, "chart": 8, "outside": 8}
"""How often a kind of picture is drawn; clips come beside them."""

_SHORT_CHAT = 160  # characters
_PLACES_FIRST = 0.65
"""How often a conversation asks where things are before all else: it is learned last."""


@dataclass
class Document:
    """Ids of a conversation or a text, and what training needs beside them."""

    ids: list[int] = field(default_factory=list)
    is_target: list[bool] = field(default_factory=list)
    positions: list[tuple[int, int, int]] = field(default_factory=list)
    scenes: list[tuple[Scene, list[int]]] = field(default_factory=list)  # with its pads' places

    @property
    def next_position(self) -> int:
        """The position behind the last one."""
        return max(self.positions[-1]) + 1 if self.positions else 0

    def add_text(self, ids: list[int], *, is_target: list[bool]) -> None:
        """Append ids that count as text."""
        first = self.next_position
        self.ids += ids
        self.is_target += is_target
        self.positions += [(at, at, at) for at in range(first, first + len(ids))]

    def add_grid(self, pad: int, rows: int, columns: int) -> list[int]:
        """Append the pads of one picture, and return their places."""
        first, start = self.next_position, len(self.ids)
        for row in range(rows):
            for column in range(columns):
                self.positions.append((first, first + row, first + column))
        count = rows * columns
        self.ids += [pad] * count
        self.is_target += [False] * count
        return list(range(start, start + count))

    def append(self, other: "Document") -> None:
        """Append another document behind this one, its positions going on from here."""
        first, start = self.next_position, len(self.ids)
        self.ids += other.ids
        self.is_target += other.is_target
        self.positions += [(t + first, h + first, w + first) for t, h, w in other.positions]
        self.scenes += [(scene, [at + start for at in places]) for scene, places in other.scenes]


class Writer:
    """Writes documents with a tokenizer, from a random state."""

    def __init__(self, tokenizer: Tokenizer, rng: Random) -> None:
        self.tokenizer = tokenizer
        self.rng = rng
        self.answer_start = self._ids(f"{TURN_START}assistant\n")
        self.turn_end = tokenizer.token_to_id(TURN_END)
        self.pads = {tokenizer.token_to_id(pad) for pad in (IMAGE_PAD, VIDEO_PAD)}

    def text(self, text: str) -> Document:
        """Return a document that is learned whole."""
        document = Document()
        ids = self._ids(text + END_OF_TEXT)
        document.add_text(ids, is_target=[True] * len(ids))
        return document

    def pictures(self, kinds: list[str], budget: int) -> Document:
        """Return a conversation about one picture of each kind, of about `budget` ids."""
        turns: list[str] = []
        scenes: list[Scene] = []
        room = budget - 12
        for at, kind in enumerate(kinds):
            drawn = draw(kind, self.rng, TRAINING)
            share = room // (len(kinds) - at)
            said = self._about(drawn, share)
            turns += said
            scenes.append(drawn.scene)
            room -= share
        if self.rng.random() < 0.12:
            at = 0 if self.rng.random() < 0.5 else len(turns)
            turns[at:at] = [self.rng.choice(_short_chats())]
        return self.conversation("".join(turns), scenes)

    def question(self, drawn: Drawn, asked: Asked) -> Document:
        """Return a conversation of one question about a picture."""
        return self.conversation(
            self._turn(drawn.scene, asked.question, asked.answer), [drawn.scene]
        )

    def nothing_to_see(self) -> Document:
        """Return a conversation that asks about a picture that is not there."""
        turns = [rendered(self._as_typed(self.rng.choice(QUESTIONS)), NO_PICTURE)]
        if self.rng.random() < 0.5:
            turns.insert(0, self.rng.choice(_short_chats()))
        return self.conversation("".join(turns), [])

    def conversation(self, text: str, scenes: list[Scene]) -> Document:
        """Return the ids of a rendered conversation, its placeholders widened to grids."""
        ids = self._ids(text + END_OF_TEXT)
        targets = self._targets(ids)
        document = Document()
        waiting = [(scene, pair) for scene in scenes for pair in range(num_pairs(scene))]
        places: list[int] = []
        first = 0
        for at, token in enumerate(ids):
            if token not in self.pads:
                continue
            document.add_text(ids[first:at], is_target=targets[first:at])
            scene, pair = waiting.pop(0)
            places += document.add_grid(token, scene.height // CELL, scene.width // CELL)
            if pair == num_pairs(scene) - 1:
                document.scenes.append((scene, places))
                places = []
            first = at + 1
        assert not waiting
        document.add_text(ids[first:], is_target=targets[first:])
        return document

    def _about(self, drawn: Drawn, budget: int) -> list[str]:
        """Return turns about a picture, the first one with it, of at most `budget` ids."""
        scene = drawn.scene
        cells = (scene.height // CELL) * (scene.width // CELL)
        room = budget - num_pairs(scene) * (cells + 8)
        turns: list[str] = []
        once = {asked.question: asked for asked in drawn.asked}.values()
        order = self.rng.sample(list(once), len(once))
        if self.rng.random() < _PLACES_FIRST:
            order.sort(key=lambda asked: asked.skill != "position")
        for asked in order:
            said = (
                rendered(self._as_typed(asked.question), asked.answer)
                if turns
                else self._turn(scene, asked.question, asked.answer)
            )
            cost = 9 + self._length(asked.question) + self._length(asked.answer)
            if turns and cost > room:
                continue
            room -= cost
            turns.append(said)
        return turns

    def _turn(self, scene: Scene, question: str, answer: str) -> str:
        """Return a question with its picture, before it as a rule, and the answer."""
        marks, question = marks_of(scene), self._as_typed(question)
        asked = marks + question if self.rng.random() < 0.8 else question + marks
        return rendered(asked, answer)

    def _as_typed(self, question: str) -> str:
        """Return a question as people also type it."""
        rng = self.rng
        if rng.random() < 0.25:
            question = question.replace("picture", rng.choice(("image", "photo")))
        if rng.random() < 0.2:
            question = question.replace("colour", "color")
        if rng.random() < 0.1:
            question = question.lower()
        if rng.random() < 0.1:
            question = question.rstrip("?.")
        return question

    def _length(self, text: str) -> int:
        return len(_cached_ids(self.tokenizer, text))

    def _targets(self, ids: list[int]) -> list[bool]:
        """Return which ids answer: from behind the assistant's mark to the end of its turn."""
        targets, is_answer, start = [], False, self.answer_start
        for at, token in enumerate(ids):
            targets.append(is_answer)
            if is_answer and token == self.turn_end:
                is_answer = False
            elif ids[at - len(start) + 1 : at + 1] == start:
                is_answer = True
        return targets

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids


def num_pairs(scene: Scene) -> int:
    """Return how many pairs of frames a scene has; a still picture is a pair of equal frames."""
    return max(1, len(scene.times_s) // 2)


def marks_of(scene: Scene) -> str:
    """Return what the chat template and the processor write for a picture or a clip."""
    if not scene.is_clip:
        return f"{VISION_START}{IMAGE_PAD}{VISION_END}"
    times = scene.times_s
    return "".join(
        f"<{(times[at] + times[at + 1]) / 2:.1f} seconds>{VISION_START}{VIDEO_PAD}{VISION_END}"
        for at in range(0, len(times), 2)
    )


def rendered(question: str, answer: str) -> str:
    """Return a turn of both as the chat template writes it."""
    return f"{TURN_START}user\n{question}{TURN_END}\n{TURN_START}assistant\n{answer}{TURN_END}\n"


@cache
def _short_chats() -> list[str]:
    """Return some short conversations of the first stage."""
    rng, chats = Random("short chats"), list[str]()
    while len(chats) < 800:
        chat = draw_chat(rng)
        if sum(len(turn.text) for turn in chat) < _SHORT_CHAT and chat[0].role == "user":
            chats.append(render_chat(chat))
    return chats


@cache
def _cached_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text).ids)
