"""Draw the pictures of the README from the records: python benchmarks/plot.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parent
PICTURES = ROOT.parent / "docs" / "images"


def records(name: str) -> list[dict[str, Any]]:
    """Return the records of one file, in order."""
    lines = (ROOT / "records" / name).read_text().splitlines()
    return [json.loads(line) for line in lines]


def draw_throughput() -> None:
    """Output tokens per second of the bundled model, by requests at once."""
    rows = [row for row in records("cpu-demo-2026-11-21.jsonl") if row["benchmark"] == "throughput"]
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    labels = [str(row["requests"]) for row in rows]
    bars = axes.bar(labels, [row["decode_tokens_per_s"] for row in rows], color="#0f766e")
    axes.bar_label(bars, fmt="{:,.0f}")
    axes.set_xlabel("requests at once")
    axes.set_ylabel("tokens per second, decoding")
    axes.set_title("Bundled model (5.8 M parameters), float32, two CPU cores")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURES / "throughput.png", dpi=110)


if __name__ == "__main__":
    draw_throughput()
