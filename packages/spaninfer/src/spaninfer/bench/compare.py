"""Two files of records side by side: what was measured in both, and by how much it differs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spaninfer.bench.records import Record, is_rate, subject, title


@dataclass(frozen=True, slots=True)
class Pair:
    """Two records of the same thing; the last one of each file where it was measured again."""

    before: Record
    after: Record

    @property
    def gain(self) -> float:
        """The speed-up of the second file: above 1 it is faster, whatever the unit."""
        before, after = self.before["median"], self.after["median"]
        return float(after / before if is_rate(self.after) else before / after)

    @property
    def is_clear(self) -> bool:
        """True if the ranges of the runs do not overlap."""
        before, after = self.before, self.after
        return bool(before["most"] < after["least"] or after["most"] < before["least"])


@dataclass(frozen=True, slots=True)
class Comparison:
    """Results that two files share, and those that only one of them has."""

    pairs: tuple[Pair, ...]
    only_before: tuple[Record, ...]
    only_after: tuple[Record, ...]


def compare(before: Iterable[Record], after: Iterable[Record]) -> Comparison:
    """Return the records of both files, matched by what was measured, in the first one's order."""
    first = {subject(record): record for record in before}
    second = {subject(record): record for record in after}
    return Comparison(
        tuple(Pair(record, second[key]) for key, record in first.items() if key in second),
        tuple(record for key, record in first.items() if key not in second),
        tuple(record for key, record in second.items() if key not in first),
    )


def titles(records: Sequence[Record]) -> list[str]:
    """Return what each record is about, without what they all are about."""
    hidden = shared_fields(records) if len(records) > 1 else ()
    return [title(record, hidden) for record in records]


def shared_fields(records: Sequence[Record]) -> tuple[str, ...]:
    """Return the fields that say the same in all records.

    >>> shared_fields([{"model": "a", "rows": 1}, {"model": "a", "rows": 2}])
    ('model',)
    """
    first, *others = records
    return tuple(
        name
        for name, value in first.items()
        if all(name in each and each[name] == value for each in others)
    )
