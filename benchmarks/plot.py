"""Draw pictures of the README and the guides from the records: python benchmarks/plot.py"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
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
    """Output tokens per second of the bundled model, by requests at once: median and range."""
    rates: dict[int, list[float]] = {}
    for row in records("cpu-demo-2026-11-21.jsonl"):
        if row["benchmark"] == "throughput":
            rates.setdefault(row["requests"], []).append(row["decode_tokens_per_s"])
    middles = [median(values) for values in rates.values()]
    below = [middle - min(values) for middle, values in zip(middles, rates.values(), strict=True)]
    above = [max(values) - middle for middle, values in zip(middles, rates.values(), strict=True)]
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    bars = axes.bar([str(each) for each in rates], middles, color="#0f766e")
    axes.errorbar(
        range(len(middles)), middles, [below, above], fmt="none", ecolor="#17201e", capsize=5
    )
    axes.bar_label(bars, fmt="{:,.0f}", label_type="center", color="white")
    axes.set_xlabel("requests at once")
    axes.set_ylabel("tokens per second, decoding")
    axes.set_title("Bundled model (5.8 M parameters), float32, two CPU cores")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURES / "throughput.png", dpi=110)


def draw_divergence() -> None:
    """What formats of weights cost the bundled model, by their size."""
    names = ("weight-divergence-2026-11-23.jsonl", "weight-divergence-w7a7-2026-11-23.jsonl")
    rows = [row for name in names for row in records(name) if row["kl"] > 0]
    rows.sort(key=lambda row: (-row["mebibytes"], row["kl"]))
    tables = [
        row
        for row in records("weight-divergence-2026-11-29.jsonl")
        if row["format"].startswith("iq4_nl")
    ]
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for group, colour, side in ((32, "#0f766e", "left"), (128, "#b45309", "right")):
        some = [row for row in rows if row["format"].endswith(f"g{group}")]
        sizes, lost = [row["mebibytes"] for row in some], [row["kl"] for row in some]
        axes.plot(sizes, lost, "o-", color=colour, label=f"groups of {group}")
        for row, size, one in zip(some, sizes, lost, strict=True):
            name = row["format"].split()[0]
            up = 3 if name == "int4" else -9  # iq4_nl's points lie below
            beside = (7, 1) if side == "left" else (-7, up)
            axes.annotate(name, (size, one), textcoords="offset points", xytext=beside, ha=side)
    sizes, lost = [row["mebibytes"] for row in tables], [row["kl"] for row in tables]
    axes.plot(sizes, lost, "o-", color="#6d28d9", label="iq4_nl, groups of 32, 64, 128")
    axes.set_yscale("log")
    axes.set_xlim(2.2, 13.6)  # for names on the left of the smallest and the right of the largest
    axes.set_xlabel("MiB of matrices (bfloat16: 22)")
    axes.set_ylabel("divergence from float32, nats")
    axes.set_title("Bundled model (12 M parameters), weights made while loading")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURES / "weight-divergence.png", dpi=110)


BESIDE = {  # where many points are close: the name's place in points, and its side
    "Q4_0": (7, 9, "left"), "Q4_K": (7, -1, "left"), "IQ4_NL": (0, -17, "right"),
    "IQ4_XS": (-7, -4, "right"), "Q5_0": (-7, -2, "right"), "MXFP4": (7, 2, "left"),
    "GPTQ grid g128": (-4, 12, "center"), "AWQ grid g128": (-7, -14, "right"),
    "NVFP4": (7, 0, "left"), "NF4 g64": (7, -13, "left"), "FP8 per tensor": (7, 6, "left"),
    "FP8 per row": (7, -12, "left"), "FP8 128x128": (-7, 0, "right"),
}  # fmt: skip


def draw_published() -> None:
    """What weights in published formats cost the bundled model, by their size."""
    rows = records("published-divergence-2026-11-28.jsonl")
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for rounds_head, colour, label in (
        (True, "#0f766e", "GGUF types, the head too"),
        (False, "#b45309", "the head in 16 bits"),
    ):
        some = [row for row in rows if row["rounds_head"] == rounds_head]
        sizes, lost = [row["mebibytes"] for row in some], [row["kl"] for row in some]
        axes.plot(sizes, lost, "o", color=colour, label=label)
        for row, size, one in zip(some, sizes, lost, strict=True):
            right, up, side = BESIDE.get(row["format"], (7, -3, "left"))
            axes.annotate(
                row["format"],
                (size, one),
                textcoords="offset points",
                xytext=(right, up),
                ha=side,
            )
    axes.set_yscale("log")
    axes.set_xlim(1.5, 7.8)
    axes.set_xlabel("MiB of the decoder's matrices (bfloat16: 11)")
    axes.set_ylabel("divergence from float32, nats")
    axes.set_title("Bundled model, weights rounded to published formats, without data")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURES / "published-divergence.png", dpi=110)


if __name__ == "__main__":
    draw_throughput()
    draw_divergence()
    draw_published()
