"""Milliseconds of Qwen2-VL-7B's vision tower on a GPU, beside a GEMM; a JSON record a line.

    python bench_tower_cuda.py --heads 64 72 80 128 --images 1 8 --rounds 10

Random weights of the published shape (32 layers, 16 heads of 80, merged into 3,584 channels), and
of the same with other heads, in bfloat16; pictures of 1,036 pixels squared, 1,369 tokens each. The
first record is the rate of a GEMM of random numbers in the same process; `of_ceiling` is the
tower's share of it. Kernels are timed by events on the stream, behind the copies of the pictures
as bytes and the look-up of their numbers; `with copies` is the time until a caller has all rows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from spaninfer_engine.backends.cuda.backend import CudaBackend
from spaninfer_engine.backends.cuda.tower import CudaTowerOps
from spaninfer_engine.backends.host.tower import HostTower
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.load.dummy import DummyReader
from spaninfer_engine.ops.bound import ProgramKey
from spaninfer_engine.ops.step import Step
from spaninfer_engine.program.bind import bind_all
from spaninfer_engine.program.lower_tower import lower_tower
from spaninfer_engine.program.packer import Packer
from spaninfer_engine.request.media import Levels, TowerInput
from spaninfer_engine.spec import Decoder, find, resolve
from spaninfer_engine.spec.tree import weights
from torch import Tensor

GEMM_SIDE = 8192
LAYERS, HEADS, MLP_RATIO, OUT = 32, 16, 4, 3584
PATCH, MERGE, FRAMES = 14, 2, 2
NUMBERS = 3 * FRAMES * PATCH**2
SIDE = 74  # patches: a picture of 1,036 pixels


def main() -> None:
    """Print the rate of a GEMM, then two records per head size and number of pictures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--heads", type=int, nargs="+", default=[64, 72, 80, 128], help="channels")
    parser.add_argument("--images", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--layers", type=int, default=LAYERS)
    asked = parser.parse_args()
    about = {
        "device": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    gemm = _gemm_tflops(asked.rounds)
    fields = {"unit": "TFLOP/s", **dict.fromkeys(("median", "least", "most"), round(gemm, 1))}
    print(json.dumps({"benchmark": "tower gemm", "side": GEMM_SIDE} | fields | about), flush=True)
    for head in asked.heads:
        tower = _opened(head, asked.layers)
        for count in asked.images:
            with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
                kernels, whole = _timed(tower, count, asked.rounds)
            tflop = count * _tflop(HEADS * head, asked.layers)
            for of, times in (("kernels", kernels), ("with copies", whole)):
                tflops = 1e3 * tflop / median(times)
                record = {
                    "benchmark": "tower",
                    "of": of,
                    "head_size": head,
                    "layers": asked.layers,
                    "images": count,
                    "patches": SIDE**2,
                    "unit": "ms",
                    "median": round(median(times), 2),
                    "least": round(min(times), 2),
                    "most": round(max(times), 2),
                    "tflops": round(tflops, 1),
                    "of_ceiling": round(tflops / gemm, 3),
                }
                print(json.dumps(record | about), flush=True)
        tower.close()
        del tower
        torch.cuda.empty_cache()


class TimedTower(HostTower[Tensor]):
    """A tower whose programs are between two events each."""

    events: list[tuple[torch.cuda.Event, torch.cuda.Event]]

    def _run(self, key: ProgramKey, step: Step[Tensor]) -> Generator[int, None, Tensor]:
        before, after = (_event() for _ in range(2))
        before.record()
        made = yield from super()._run(key, step)
        after.record()
        self.events.append((before, after))
        return made


def _opened(head: int, layers: int) -> TimedTower:
    """Return the tower with heads of so many channels, its kernels compiled."""
    config = {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "hidden_size": OUT,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 64,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 1024,
        "hidden_act": "silu",
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vision_config": {
            "depth": layers,
            "embed_dim": HEADS * head,
            "hidden_size": OUT,
            "mlp_ratio": MLP_RATIO,
            "num_heads": HEADS,
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        checkpoint = open_checkpoint(folder, with_weights=False)
    model = resolve(find(checkpoint.config), checkpoint.config)
    assert isinstance(model, Decoder)
    (found,) = model.towers
    ops = CudaTowerOps("bfloat16")
    pack = Packer(ops, DummyReader(weights(found), seed=0))
    tower = TimedTower(
        lambda: bind_all(lower_tower(found), ops, pack), ops, found, max_rows=CudaBackend.tower_rows
    )
    tower.events = []
    tower.load()
    ops.warm_up(lambda: tower.encode(_pictures(1)), lambda _done, _of: None)
    return tower


def _pictures(count: int) -> list[TowerInput]:
    rng = np.random.default_rng(count)
    levels = Levels(rng.standard_normal((3, 256), np.float32), FRAMES)
    return [
        TowerInput(
            "image",
            rng.integers(0, 256, (SIDE**2, NUMBERS // FRAMES), np.uint8),
            SIDE**2 // MERGE**2,
            bytes([number]) * 32,
            (1, SIDE, SIDE),
            levels=levels,
        )
        for number in range(count)
    ]


def _timed(tower: TimedTower, count: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return milliseconds of the kernels of `count` pictures, and until their rows are there."""
    pictures = _pictures(count)
    kernels, whole = [], []
    for number in range(1 + rounds):  # the first prepares launches
        tower.events.clear()
        torch.cuda.synchronize()
        begin_s = perf_counter()
        tower.encode(pictures)
        torch.cuda.synchronize()
        if number:
            whole.append(1e3 * (perf_counter() - begin_s))
            kernels.append(sum(a.elapsed_time(b) for a, b in tower.events))
    return kernels, whole


def _tflop(channels: int, layers: int) -> float:
    """Return the floating-point operations of a picture, in 10^12: GEMMs and attention."""
    rows = SIDE**2
    layer = 4 * channels**2 + 2 * MLP_RATIO * channels**2  # numbers of its matrices
    merged = MERGE**2 * channels
    gemms = rows * (layers * layer + NUMBERS * channels)
    gemms += rows // MERGE**2 * (merged**2 + merged * OUT)
    attention = layers * 2 * rows**2 * channels
    return 2 * (gemms + attention) / 1e12


def _gemm_tflops(rounds: int) -> float:
    """Return the rate of a large GEMM of random numbers: zeros would draw less power."""
    shape = GEMM_SIDE, GEMM_SIDE
    a, b = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    times = _milliseconds(lambda: torch.mm(a, b, out=out), rounds)
    return 2 * GEMM_SIDE**3 / median(times) / 1e9


def _milliseconds(work: Callable[[], object], rounds: int) -> list[float]:
    times = []
    for _ in range(3 + rounds):
        before, after = (_event() for _ in range(2))
        before.record()
        work()
        after.record()
        after.synchronize()
        times.append(float(before.elapsed_time(after)))
    return times[3:]


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
