"""Draw the loss curve: python draw_loss.py loss.jsonl picture.png."""

import json
import sys
from pathlib import Path

from matplotlib import pyplot


def main(log: str, picture: str) -> None:
    """Write a picture of the training loss and the held-out loss over the tokens seen."""
    records = [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    trained = [record for record in records if "loss" in record]
    held_out = [record for record in records if "held_out_loss" in record]
    tokens_per_step = trained[0]["tokens"]
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    millions = [record["tokens"] / 1e6 for record in trained]
    axes.plot(millions, [record["loss"] for record in trained], linewidth=0.8, label="training")
    axes.plot(
        [(record["step"] + 1) * tokens_per_step / 1e6 for record in held_out],
        [record["held_out_loss"] for record in held_out],
        marker=".",
        label="held out",
    )
    axes.set(
        xlabel="tokens seen (millions)", ylabel="cross entropy (nats per token)", ylim=(0, 1.5)
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(picture, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main(*sys.argv[1:])
