"""Seconds of Qwen2-VL-7B's vision tower on the CPU beside torch, in turns; a JSON record a line.

    python bench_tower.py --layers 4 --sides 448 896 --rounds 7

Needs torch and transformers. Random weights of the published shape (1,280 channels, 16 heads of
80, merged into 3,584), float32: both programs compute the patch embedding, the first layers and
the merger of one square picture. Ratios are medians over rounds, of seconds and of CPU seconds,
which neighbours on the machine lengthen less.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spaninfer_engine.backends.cpu.ops import CpuOps
from spaninfer_engine.backends.host.tower import HostTower
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.program.bind import bind_all
from spaninfer_engine.program.lower_tower import lower_tower
from spaninfer_engine.program.packer import Packer
from spaninfer_engine.request.media import TowerInput
from spaninfer_engine.spec import Decoder, find, resolve
from spaninfer_host_limits import cpu_name, usable_cpus

Rows = NDArray[np.float32]
Program = Callable[[Rows, int], Rows]

PATCH, MERGE, NUMBERS = 14, 2, 3 * 2 * 14 * 14
VISION = {"embed_dim": 1280, "hidden_size": 3584, "num_heads": 16, "mlp_ratio": 4}
TEXT = {"hidden_size": 3584, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 64}  # fmt: skip


def main() -> None:
    """Print a record per size and program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--sides", type=int, nargs="+", default=[448, 896], help="pixels")
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        programs = {"torch": _torch(Path(folder), asked.layers), "spaninfer": _ours(Path(folder))}
        for side in asked.sides:
            side_patches = side // PATCH // MERGE * MERGE
            rng = np.random.default_rng(side)
            patches = rng.standard_normal((side_patches**2, NUMBERS), np.float32)
            results = {key: run(patches, side_patches) for key, run in programs.items()}
            error = np.abs(results["spaninfer"] - results["torch"]).max()
            spent = _in_turns(programs, patches, side_patches, asked.rounds)
            for key, taken in spent.items():
                record = {
                    "benchmark": "tower",
                    "shape": "qwen2-vl-7b",
                    "layers": asked.layers,
                    "patches": len(patches),
                    "program": key,
                    "seconds": round(median(wall for wall, _ in taken), 4),
                    "cpu_seconds": round(median(cpu for _, cpu in taken), 4),
                    "over_torch": _ratio(spent["torch"], taken, 0),
                    "over_torch_by_cpu": _ratio(spent["torch"], taken, 1),
                    "largest_difference": float(error / np.abs(results["torch"]).max()),
                    "threads": usable_cpus(),
                    "cpu": cpu_name(),
                    "load": os.getloadavg()[0],
                }
                print(json.dumps(record), flush=True)


def _ratio(theirs: list[tuple[float, float]], ours: list[tuple[float, float]], which: int) -> float:
    return round(median(a[which] / b[which] for a, b in zip(theirs, ours, strict=True)), 3)


def _in_turns(
    programs: dict[str, Program], patches: Rows, side: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return seconds and CPU seconds of every round."""
    spent: dict[str, list[tuple[float, float]]] = {key: [] for key in programs}
    for number in range(rounds):
        for key in sorted(programs, reverse=number % 2 == 0):
            begin = perf_counter(), process_time()
            programs[key](patches, side)
            spent[key].append((perf_counter() - begin[0], process_time() - begin[1]))
    return spent


def _torch(folder: Path, layers: int) -> Program:
    """Write the weights; return transformers' tower."""
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_num_threads(usable_cpus())
    config = transformers.Qwen2VLConfig(
        text_config={**TEXT, "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 24, 24]}},
        vision_config={**VISION, "depth": layers},
    )  # fmt: skip
    model = transformers.Qwen2VLForConditionalGeneration(config).eval()
    model.save_pretrained(folder)
    tower = model.model.visual

    def run(patches: Rows, side: int) -> Rows:
        with torch.no_grad():
            found: Any = tower(torch.from_numpy(patches), torch.tensor([[1, side, side]]))
        rows: Rows = found.pooler_output.numpy()
        return rows

    return run


def _ours(folder: Path) -> Program:
    checkpoint = open_checkpoint(folder)
    reader, ops = checkpoint.reader, CpuOps()
    model = resolve(find(checkpoint.config), checkpoint.config, reader.names)
    assert isinstance(model, Decoder)
    (found,) = model.towers
    pack = Packer(ops, reader)
    tower = HostTower(lambda: bind_all(lower_tower(found), ops, pack), ops, found)

    def run(patches: Rows, side: int) -> Rows:
        tokens = len(patches) // MERGE**2
        item = TowerInput("image", patches, tokens, bytes(32), (1, side, side))
        rows: Rows = ops.to_host(tower.encode([item])[0].rows)
        return rows

    return run


if __name__ == "__main__":
    main()
