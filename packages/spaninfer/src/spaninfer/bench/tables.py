"""Records as a table for people: one file beside another, beside what should be reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spaninfer.bench.compare import Comparison, Pair, shared_fields, titles
from spaninfer.bench.records import Record, family, title
from spaninfer.bench.targets import Bar, find_bar

Item = TypeVar("Item")


def print_comparison(comparison: Comparison, bars: Sequence[Bar]) -> None:
    """Print pairs with their ratio and their bars, then what only one of the files has."""
    out = Console()
    for pairs in _by_family(comparison.pairs, lambda pair: pair.after):
        out.print(_pairs_table(pairs, bars))
    for where, records in (
        ("only in the first", comparison.only_before),
        ("only in the second", comparison.only_after),
    ):
        for record in records:
            out.print(f"{where}: {escape(title(record))}", highlight=False, soft_wrap=True)


def print_records(records: Sequence[Record], bars: Sequence[Bar]) -> None:
    """Print what was measured beside the bars."""
    for group in _by_family(records, lambda record: record):
        Console().print(_records_table(group, bars))


def _by_family(items: Sequence[Item], record_of: Callable[[Item], Record]) -> Iterable[list[Item]]:
    """Return the items of each table, in order of first appearance."""
    found: dict[object, list[Item]] = {}
    for item in items:
        found.setdefault(family(record_of(item)), []).append(item)
    return found.values()


def _records_table(records: Sequence[Record], bars: Sequence[Bar]) -> Table:
    shares = ("of ceiling",) if all("of_ceiling" in record for record in records) else ()
    table = _table(records, ("measured", "range", *shares, *_bar_columns(bars)))
    for name, record in zip(titles(records), records, strict=True):
        table.add_row(
            escape(name),
            _number(record["median"], record),
            f"{record['least']:g} … {record['most']:g}",
            *(f"{record['of_ceiling']:.0%}" for _ in shares),
            *_bar_cells(bars, record),
        )
    return table


def _pairs_table(pairs: Sequence[Pair], bars: Sequence[Bar]) -> Table:
    after = [pair.after for pair in pairs]
    table = _table(after, ("first", "second", "times as fast", *_bar_columns(bars)))
    for name, pair in zip(titles(after), pairs, strict=True):
        gain = f"{pair.gain:.3f}"
        table.add_row(
            escape(name),
            _number(pair.before["median"], pair.before),
            _number(pair.after["median"], pair.after),
            f"[bold]{gain}[/]" if pair.is_clear else gain,
            *_bar_cells(bars, pair.after),
        )
    return table


def _table(records: Sequence[Record], columns: Sequence[str]) -> Table:
    said = {name: records[0][name] for name in shared_fields(records) if name in _IN_TITLE}
    heading = " · ".join(str(value) for value in said.values())
    table = Table(title=escape(heading), title_justify="left")
    table.add_column("what", style="bold")
    for column in columns:
        table.add_column(column, justify="right")
    return table


_IN_TITLE = ("model", "kernel", "weights", "dtype", "kv", "device", "commit", "date")


def _bar_columns(bars: Sequence[Bar]) -> tuple[str, ...]:
    return ("reach", "", "peers") if bars else ()


def _bar_cells(bars: Sequence[Bar], record: Record) -> tuple[str, ...]:
    """Return what should be reached, whether it is, and what peers reach."""
    bar = find_bar(bars, record)
    if bar is None:
        return ("",) * len(_bar_columns(bars))
    mark = {None: "", True: "[green]✓[/]", False: "[red]✗[/]"}[bar.is_reached(record)]
    reach = "" if bar.reach is None else f"{bar.reach:g}"
    return reach, mark, escape(", ".join(f"{name} {value:g}" for name, value in bar.peers.items()))


def _number(value: float, record: Record) -> str:
    return f"{value:,g} {record['unit']}"
