"""Teach the demo model to see: pictures, training, model folder.

python build_vision.py START WORK OUT [--seconds S]
"""

import argparse
import os
from pathlib import Path

import torch
from spaninfer.bench.pictures.world import HELD_OUT, TRAINING
from vision.export import export_settings, widen_tokenizer
from vision.model import VISION_SHAPE, TowerShape
from vision.pool import Sizes, outlines, write_pool
from vision.train import Plan, train

_MANY_FILES = 100_000


def main() -> None:
    """Write batches with all cores while the model trains on them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("start", type=Path, help="model folder of the first stage, or of this one")
    parser.add_argument("work", type=Path, help="folder for batches, about 2 MB for each step")
    parser.add_argument("out", type=Path, help="folder for the model and log.jsonl")
    parser.add_argument("--seconds", type=float, default=500.0, help="how long to train")
    parser.add_argument("--files", type=int, help="write that many files of batches, and no more")
    parser.add_argument("--trial", action="store_true", help="small batches, for a CPU")
    arguments = parser.parse_args()
    for folder in (arguments.work, arguments.out):
        folder.mkdir(parents=True, exist_ok=True)
    tokenizer = arguments.work / "tokenizer.json"
    widen_tokenizer(arguments.start / "tokenizer.json", tokenizer)
    sizes = Sizes(2, 6, 256, 1, 1024, 4) if arguments.trial else Sizes()
    processes = max(1, (os.cpu_count() or 1) * 3 // 4)
    for style in (TRAINING, HELD_OUT):
        outlines(style, arguments.work, processes=processes)
    files = range(arguments.files or _MANY_FILES)
    pool, written = write_pool(arguments.work, tokenizer, sizes, files=files, processes=processes)
    with pool:
        if arguments.files:
            written.get()
        if arguments.seconds:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            weights = arguments.start / "model.safetensors"
            share = 0.02 if arguments.trial else 1.0
            plan = Plan(arguments.seconds, sizes=sizes, questions_share=share)
            export_settings(tokenizer, VISION_SHAPE, TowerShape(), arguments.out)
            train(weights, arguments.work, arguments.out, plan, device=device)
        pool.terminate()


if __name__ == "__main__":
    main()
