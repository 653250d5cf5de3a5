"""Media of requests: which of them towers see before the next step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from sys import maxsize

from spaninfer_engine.cache.encodings import EncoderCache
from spaninfer_engine.request.media import MediaRun, TowerInput
from spaninfer_engine.schedule.policy import encode_steps, num_encodings
from spaninfer_engine.schedule.sequence import SequenceState
from spaninfer_engine.step.plan import Tuning


class MediaScheduler:
    """Schedules encodings ahead of the prefills that need them, and holds these back until then.

    The first prefill in order may take the memory of all others' encodings, which are then made
    anew: so there is always progress. Where several steps share the work, those that need its
    results are held back until the last of them.
    """

    def __init__(self, tuning: Tuning, max_rows: int) -> None:
        self.cache = EncoderCache(max_rows)
        self._tuning = tuning
        self._chosen: list[TowerInput] = []  # for the next step that is planned
        self._steps = 0  # that share what is under way, the next one included
        self._under_way: frozenset[bytes] = frozenset()

    def plan(self, running: Iterable[SequenceState], number: int) -> None:
        """Choose what is encoded before step `number`, and note how far each prefill may go."""
        prefills: list[SequenceState] = []
        has_decodes = False
        for seq in running:
            if seq.num_scheduled >= seq.prefill_end:
                has_decodes |= seq.num_scheduled < seq.max_pos
            elif seq.media_runs:
                prefills.append(seq)
        if not prefills:
            return
        if not self._steps:
            self._choose(prefills, has_decodes=has_decodes, number=number)
        elif not has_decodes:
            self._steps = 1  # nothing waits meanwhile
        for seq in prefills:
            seq.encoded_until = next(
                (run.start for run in _needed(seq) if not self._is_there(run.digest)), maxsize
            )

    def take_chosen(self) -> tuple[tuple[TowerInput, ...], int]:
        """Return what was chosen since the last call, and has not made room since; and how many
        steps share what is under way, this one included.
        """
        chosen, self._chosen = self._chosen, []
        steps, self._steps = self._steps, max(self._steps - 1, 0)
        return tuple(each for each in chosen if each.digest in self.cache), steps

    def _is_there(self, digest: bytes) -> bool:
        """Return True if the encoding is there in the next step."""
        return digest in self.cache and not (self._steps > 1 and digest in self._under_way)

    def _choose(self, prefills: list[SequenceState], *, has_decodes: bool, number: int) -> None:
        """Choose missing encodings that the step may need, in order, as far as policy and memory
        go; they count as there from now on.
        """
        needed: dict[bytes, TowerInput] = {}
        for seq in prefills:
            reach = seq.num_scheduled + self._tuning.largest_step
            for run in _needed(seq):
                if run.start < reach:
                    needed.setdefault(run.digest, _input(seq, run))
        missing = [each for digest, each in needed.items() if digest not in self.cache]
        count = num_encodings(
            [each.num_tokens for each in missing],
            self._tuning,
            has_decodes=has_decodes,
            number=number,
        )
        wanted = {each.digest for each in missing[:count]}
        before: set[bytes] = set()  # what those in front need stays
        for digest, each in needed.items():
            if digest in wanted:
                if not self.cache.add(digest, each.num_tokens, before):
                    break
                self._chosen.append(each)
            self.cache.touch(digest)
            before.add(digest)
        if self._chosen:
            num_tokens = sum(each.num_tokens for each in self._chosen)
            self._steps = encode_steps(num_tokens, self._tuning, has_decodes=has_decodes)
            self._under_way = frozenset(each.digest for each in self._chosen)


def _needed(seq: SequenceState) -> Iterator[MediaRun]:
    """Yield the runs that the rest of a prefill reads, ascending."""
    return (run for run in seq.media_runs if run.stop > seq.num_scheduled)


def _input(seq: SequenceState, run: MediaRun) -> TowerInput:
    media = seq.request.media
    assert media is not None
    return media.items[run.item].input
