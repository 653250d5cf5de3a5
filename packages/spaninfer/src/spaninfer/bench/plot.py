"""A picture per table: what was measured, its range, and marks for what should be reached."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spaninfer_engine import ConfigError

from spaninfer.bench.compare import titles
from spaninfer.bench.records import Record, family
from spaninfer.bench.targets import Bar, find_bar

_INK, _FILL, _REACH, _PEER = "#17201e", "#0f766e", "#d97706", "#64748b"
_ROW_INCHES = 0.32
_LOGARITHMIC_FROM = 50.0  # times the smallest value


def draw(records: Sequence[Record], bars: Sequence[Bar], folder: Path) -> Iterator[Path]:
    """Write a PNG per group of records into the folder; yield their paths.

    Raises ConfigError where matplotlib is not installed, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        raise ConfigError(f"{folder} cannot be created: {refused.strerror}") from refused
    for name, group in groups(records).items():
        path = folder / f"{name}.png"
        _draw_group(group, bars, path)
        yield path


def groups(records: Sequence[Record]) -> Mapping[str, list[Record]]:
    """Return the records of each picture by its name: one per model or kernel, and unit.

    >>> record = {"benchmark": "engine", "model": "Qwen 7B", "unit": "tok/s", "median": 1}
    >>> list(groups([record]))
    ['engine-qwen-7b-tok-s']
    """
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(_name(record), []).append(record)
    return found


def _name(record: Record) -> str:
    parts = (*family(record), record["unit"])
    return "-".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()) for part in parts if part)


def _draw_group(records: Sequence[Record], bars: Sequence[Bar], path: Path) -> None:
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(
        figsize=(8, 1.4 + _ROW_INCHES * len(records)), layout="constrained"
    )
    _draw_values(axes, records)
    _mark_bars(axes, records, bars)
    axes.set_yticks(range(len(records)), titles(records))
    axes.invert_yaxis()
    axes.set_xlabel(str(records[0]["unit"]))
    shared = [records[0][name] for name in ("model", "kernel", "device") if name in records[0]]
    axes.set_title(" · ".join(map(str, shared)), loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_values(axes: Any, records: Sequence[Record]) -> None:
    """Draw medians with their ranges: bars, or points where the axis has no zero."""
    places = range(len(records))
    values = [record["median"] for record in records]
    below = [record["median"] - record["least"] for record in records]
    above = [record["most"] - record["median"] for record in records]
    style = {"ecolor": _INK, "capsize": 3}
    if max(values) > _LOGARITHMIC_FROM * min(values) > 0:
        axes.set_xscale("log")
        axes.errorbar(values, places, xerr=[below, above], fmt="o", color=_FILL, **style)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(axis="x", which="both", alpha=0.25)
    else:
        axes.barh(places, values, xerr=[below, above], color=_FILL, **style)


def _mark_bars(axes: Any, records: Sequence[Record], bars: Sequence[Bar]) -> None:
    """Draw a line through a row where it should reach, and a point where each peer is."""
    found = {place: find_bar(bars, record) for place, record in enumerate(records)}
    labelled: set[str] = set()

    def label(text: str) -> str:
        shown = "_" if text in labelled else text  # one entry per kind of mark
        labelled.add(text)
        return shown

    for place, bar in found.items():
        if bar is None:
            continue
        if bar.reach is not None:
            ends = (place - 0.4, place + 0.4)
            axes.vlines(bar.reach, *ends, color=_REACH, linewidth=2.5, label=label("to reach"))
        for number, (peer, value) in enumerate(bar.peers.items()):
            marker = "ods^v"[number % 5]
            axes.plot([value], [place], marker, color=_PEER, fillstyle="none", label=label(peer))
    if labelled:
        axes.legend(frameon=False, loc="best")


def _pyplot() -> Any:
    """Return matplotlib's drawing without a screen."""
    try:
        import matplotlib
    except ImportError as missing:
        raise ConfigError("plots need matplotlib: pip install matplotlib") from missing
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot
