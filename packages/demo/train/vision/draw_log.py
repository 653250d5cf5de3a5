"""Draw what was learned when: python vision/draw_log.py picture.png first.jsonl second.jsonl."""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib import pyplot

_SHOWN = ("colour", "shape", "count", "position", "number", "word", "chart", "motion", "outside")


def main(picture: str, *logs: str) -> None:
    """Write a picture of the losses, and of the share of right answers by skill, over minutes.

    Every log is of a run that went on from the weights of the one before.
    """
    records: list[dict[str, Any]] = []
    for log in logs:
        records += _timed(Path(log), records[-1]["minutes"] if records else 0.0)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    for name, label in (("answers", "answers about pictures"), ("text", "text and long rows")):
        known = [record for record in records if name in record]
        left.plot(
            [record["minutes"] for record in known], [record[name] for record in known], label=label
        )
    left.set(xlabel="minutes", ylabel="cross entropy (nats per token)", yscale="log")
    results = [record for record in records if "right" in record]
    for skill in _SHOWN:
        shares = [100 * record["right"].get(skill, 0.0) for record in results]
        right.plot([record["minutes"] for record in results], shares, ".-", label=skill)
    right.set(xlabel="minutes", ylabel="held-out answers right to the last token (%)")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(picture, dpi=110, bbox_inches="tight")


def _timed(log: Path, start: float) -> list[dict[str, Any]]:
    """Return the records of a run with their minutes; answers are counted between two steps."""
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    minutes = start
    for record in records:
        minutes = start + record["seconds"] / 60 if "seconds" in record else minutes
        record["minutes"] = minutes
    return records


if __name__ == "__main__":
    main(*sys.argv[1:])
