"""The training loop: rows of the shards, the schedule, the log and the checkpoints."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from export import export_weights
from model import Qwen3, Shape
from numpy.typing import NDArray
from optimizer import Optimizer, schedule
from torch import Tensor

_LOG_EVERY = 50
_VALIDATE_EVERY = 500
_VALIDATION_ROWS = 32


@dataclass(frozen=True)
class Plan:
    """How long to train and on what rows.

    Most steps see rows of short_len; the last long_share of them see rows of long_len, mostly
    instructions, so that the model has met contexts as long as its configuration promises.
    """

    num_steps: int
    rows: int = 128
    short_len: int = 1024
    long_len: int = 4096
    long_share: float = 0.15
    warmup: int = 100
    decay_share: float = 0.45
    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    seed: int = 20261121


class Rows:
    """Rows of a shard, in an order drawn by seed, again and again.

    A row begins where a document begins, as a prompt does, unless a long document is in the way.
    """

    def __init__(self, ids: NDArray[np.uint16], length: int, *, seed: int, device: str) -> None:
        starts = row_starts(ids, length)
        self.starts = torch.from_numpy(starts).to(device)
        self.ids = torch.from_numpy(ids.view(np.int16)).to(device)  # the vocabulary fits 15 bits
        self.offsets = torch.arange(length + 1, device=device)
        self.generator = torch.Generator().manual_seed(seed)
        self.order = torch.empty(0, dtype=torch.long)

    def draw(self, count: int) -> Tensor:
        """Return the next count rows, [count length+1]."""
        while len(self.order) < count:
            more = torch.randperm(len(self.starts), generator=self.generator)
            self.order = torch.cat((self.order, more))
        taken, self.order = self.order[:count], self.order[count:]
        starts = self.starts[taken.to(self.starts.device)]
        return self.ids[starts[:, None] + self.offsets].long()


def row_starts(ids: NDArray[np.uint16], length: int) -> NDArray[np.int64]:
    """Return where rows of length + 1 ids begin: every length ids, at the next document's start.

    Where no document starts within half a row, the row begins inside one.
    """
    regular = np.arange(0, len(ids) - length - 1, length)
    starts = np.concatenate(([0], np.flatnonzero(ids == 0) + 1))  # id 0 ends a document
    nearest = starts[np.minimum(np.searchsorted(starts, regular), len(starts) - 1)]
    is_near = (nearest >= regular) & (nearest < regular + length // 2)
    return np.minimum(np.where(is_near, nearest, regular), len(ids) - length - 1)


def train(data: Path, out: Path, plan: Plan, *, device: str) -> None:
    """Train on the shards in data; write loss.jsonl and the weights to out as training goes on."""
    torch.manual_seed(plan.seed)
    torch.set_float32_matmul_precision("high")
    model = Qwen3(Shape()).to(device)
    optimizer = Optimizer(model, muon_rate=plan.muon_rate, adam_rate=plan.adam_rate)
    # Static shapes: one graph for the short rows and one for the long ones.
    loss_of = torch.compile(model.loss, dynamic=False) if device == "cuda" else model.loss
    stages = _stages(data, plan, device)
    held_out = Rows(np.load(data / "held_out.npy"), plan.short_len, seed=0, device=device)
    validation = held_out.draw(min(_VALIDATION_ROWS, plan.rows))
    switch = round(plan.num_steps * (1 - plan.long_share))
    for rows, count in stages:  # compile both before the first step
        with torch.autocast(device, dtype=torch.bfloat16):
            torch.autograd.backward(loss_of(rows.draw(count)).sum())
    optimizer.drop_gradients()
    started_s = time.monotonic()
    with (out / "loss.jsonl").open("w", encoding="utf-8") as log:
        for step in range(plan.num_steps):
            rows, count = stages[step >= switch]
            with torch.autocast(device, dtype=torch.bfloat16):
                losses = loss_of(rows.draw(count))
            torch.autograd.backward(losses.sum())
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step(
                schedule(step, plan.num_steps, warmup=plan.warmup, decay_share=plan.decay_share)
            )
            if step % _LOG_EVERY == 0 or step == plan.num_steps - 1:
                tokens = (step + 1) * plan.rows * plan.short_len
                _write(log, step, tokens, losses, started_s)
            if step % _VALIDATE_EVERY == 0 or step == plan.num_steps - 1:
                _write_validation(log, step, model, validation)
                export_weights(model, out)


def _stages(data: Path, plan: Plan, device: str) -> tuple[tuple[Rows, int], tuple[Rows, int]]:
    """Return (rows, how many per step) of the short stage and of the long one."""
    main, final = np.load(data / "main.npy"), np.load(data / "final.npy")
    short = Rows(main, plan.short_len, seed=plan.seed, device=device)
    long = Rows(final, plan.long_len, seed=plan.seed, device=device)
    return (short, plan.rows), (long, max(1, plan.rows * plan.short_len // plan.long_len))


def _write(log: TextIO, step: int, tokens: int, losses: Tensor, started_s: float) -> None:
    record = {
        "step": step,
        "tokens": tokens,
        "loss": round(losses[0].item(), 4),
        "seconds": round(time.monotonic() - started_s, 1),
    }
    log.write(json.dumps(record) + "\n")
    log.flush()
    if step % (10 * _LOG_EVERY) == 0:
        print(record, flush=True)


def _write_validation(log: TextIO, step: int, model: Qwen3, rows: Tensor) -> None:
    with torch.no_grad(), torch.autocast(rows.device.type, dtype=torch.bfloat16):
        loss = model.loss(rows)[0].item()
    record = {"step": step, "held_out_loss": round(loss, 4)}
    log.write(json.dumps(record) + "\n")
    print(record, flush=True)
