"""Draw what was learned when: python vision/draw_log.py log.jsonl picture.png."""

import json
import sys
from pathlib import Path

from matplotlib import pyplot

_SHOWN = ("colour", "shape", "count", "position", "number", "word", "chart", "motion", "outside")


def main(log: str, picture: str) -> None:
    """Write a picture of the losses, and of the share of right answers by skill, over minutes."""
    records = [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    steps = [record for record in records if "answers" in record]
    minutes = {record["step"]: record["seconds"] / 60 for record in steps}
    per_step = max(minutes.values()) / max(minutes)
    results = [record for record in records if "right" in record]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    for name, label in (("answers", "answers about pictures"), ("text", "text and long rows")):
        left.plot(list(minutes.values()), [record[name] for record in steps], label=label)
    left.set(xlabel="minutes", ylabel="cross entropy (nats per token)", yscale="log")
    for skill in _SHOWN:
        shares = [100 * record["right"].get(skill, 0.0) for record in results]
        right.plot([record["step"] * per_step for record in results], shares, ".-", label=skill)
    right.set(xlabel="minutes", ylabel="held-out answers right to the last token (%)")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(picture, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main(*sys.argv[1:])
