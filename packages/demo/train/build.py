"""Build the demo model from nothing: tokenizer, corpus, training, model folder.

python build.py BOOKS WORK OUT [--steps N] [--rows N] [--scale S]
"""

import argparse
import os
import time
from pathlib import Path

import torch
from corpus import build
from export import export_settings
from train import Plan, train
from vocabulary import train_tokenizer

NUM_STEPS = 11_500  # of 131,072 tokens each


def main() -> None:
    """Do all four, in a folder that is empty at the beginning."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("books", type=Path, help="folder with the books that data.toml names")
    parser.add_argument("work", type=Path, help="folder for the tokenised corpus, about 800 MB")
    parser.add_argument("out", type=Path, help="folder for the model and loss.jsonl")
    parser.add_argument("--steps", type=int, default=NUM_STEPS, help="fewer for a trial")
    parser.add_argument(
        "--rows", type=int, default=Plan.rows, help="rows per step, fewer for a trial"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="share of the corpus to write")
    arguments = parser.parse_args()
    data = arguments.work
    for folder in (data, arguments.out):
        folder.mkdir(parents=True, exist_ok=True)
    started_s = time.monotonic()
    train_tokenizer(data / "tokenizer.json", arguments.books)
    export_settings(data / "tokenizer.json", arguments.out)
    print(f"tokenizer: {time.monotonic() - started_s:.0f} s", flush=True)
    build(data, arguments.books, processes=os.cpu_count() or 1, scale=arguments.scale)
    print(f"corpus: {time.monotonic() - started_s:.0f} s", flush=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train(data, arguments.out, Plan(arguments.steps, rows=arguments.rows), device=device)
    print(f"training: {time.monotonic() - started_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
