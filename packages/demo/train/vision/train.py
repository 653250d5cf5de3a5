"""The second stage: rows of pictures and rows of text, until the time is over."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import TextIO

import torch
from optimizer import Optimizer, schedule
from safetensors.torch import load_file
from spaninfer.bench.pictures.atlas import NUM_CLASSES
from spaninfer.bench.pictures.colours import BOXES
from spaninfer.bench.pictures.world import HELD_OUT, TRAINING
from torch import Tensor

from vision.export import export_weights
from vision.model import VISION_SHAPE, Seeing, TowerShape
from vision.patches import Painter, layout_of, to_device
from vision.pool import Arrays, Sizes, held_out, outlines, read_pool

_LOG_EVERY = 50
_TEXT_WEIGHT = 0.6
_QUESTIONS = {"shapes": 512, "number": 192, "word": 96, "chart": 160, "clip": 192, "outside": 128}


@dataclass(frozen=True)
class Plan:
    """How long to train, and how fast."""

    seconds: float
    evaluate_every_s: float = 60.0
    sizes: Sizes = field(default_factory=Sizes)
    warmup: int = 100
    decay_share: float = 0.5
    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    probe_weight: float = 0.5
    seed: int = 20261123
    questions_share: float = 1.0


def train(start: Path, work: Path, out: Path, plan: Plan, *, device: str) -> None:
    """Train from the weights in start on batches in work; write log.jsonl and weights to out."""
    began_s = time.monotonic()
    torch.manual_seed(plan.seed)
    torch.set_float32_matmul_precision("high")
    model = Seeing(VISION_SHAPE, TowerShape(), kinds=NUM_CLASSES + 1, colours=len(BOXES) + 1)
    load_weights(model, start)
    model.to(device)
    optimizer = Optimizer(model, muon_rate=plan.muon_rate, adam_rate=plan.adam_rate)
    is_gpu = device == "cuda"
    painter = Painter(outlines(TRAINING, work, processes=1), device, compiled=is_gpu)
    examiner = Examiner(work, plan, device)
    if is_gpu:
        model.compile()
    batches = _prefetched(work)
    with (out / "log.jsonl").open("w", encoding="utf-8") as log:
        step, examined_s, waited_s = 0, 0.0, 0.0
        started_s = time.monotonic()
        while (spent_s := time.monotonic() - began_s) < plan.seconds:
            asked_s = time.monotonic()
            batch = to_device(batches.get(), device)
            waited_s += time.monotonic() - asked_s
            short = {name: value for name, value in batch.items() if not name.startswith("long_")}
            long = {name[5:]: value for name, value in batch.items() if name.startswith("long_")}
            losses = []
            for part, clips, weight in ((short, plan.sizes.clips, 1.0), (long, 0, _TEXT_WEIGHT)):
                patches, *labels = painter.patches(part, clips)
                with torch.autocast(device, dtype=torch.bfloat16):
                    loss = model.loss(part, patches.bfloat16() if is_gpu else patches, *labels)
                probes = plan.probe_weight * max(0.0, 1 - 1.5 * spent_s / plan.seconds)
                torch.autograd.backward(weight * (loss[:2].sum() + probes * loss[2:].sum()))
                losses.append(loss.detach())
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step(_scale(plan, step, spent_s))
            if step % _LOG_EVERY == 0:
                if is_gpu and step == 0:
                    print(f"first step after {time.monotonic() - began_s:.0f} s", flush=True)
                    started_s = time.monotonic()
                _write(
                    log,
                    step,
                    losses,
                    spent_s,
                    (spent_s + began_s - started_s) / max(step, 1),
                    waited_s,
                )
            if spent_s - examined_s > plan.evaluate_every_s:
                examined_s = spent_s
                _write_results(log, step, examiner.results(model))
                export_weights(model, out)
            step += 1
        _write_results(log, step, examiner.results(model))
        export_weights(model, out)
    if is_gpu:
        print(f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most", flush=True)


def load_weights(model: Seeing, path: Path) -> None:
    """Take the weights of the first stage, or of an earlier run of this one."""
    found = load_file(path)
    own = model.state_dict()
    for name, weight in found.items():
        name = (
            name
            if ".visual." in name or "language_model" in name
            else name.replace("model.", "model.language_model.", 1)
        )
        target = own[name]
        target[: len(weight)].copy_(weight.reshape(-1, *target.shape[1:]).float())
        if len(target) > len(weight):  # new ids: like the others on average, so as to be unlikely
            target[len(weight) :] = target[: len(weight)].mean(0)


class Examiner:
    """Asks held-out questions, and counts the answers that are right to the last id."""

    def __init__(self, work: Path, plan: Plan, device: str) -> None:
        counts = {
            kind: max(2, int(count * plan.questions_share)) for kind, count in _QUESTIONS.items()
        }
        self.device = device
        self.skills, arrays = held_out(work / "tokenizer.json", counts, plan.sizes.short_len)
        self.arrays = to_device(arrays, device)
        self.painter = Painter(outlines(HELD_OUT, work, processes=1), device, compiled=False)

    @torch.no_grad()
    @torch.compiler.set_stance("force_eager")
    def results(self, model: Seeing) -> dict[str, float]:
        """Return the share of right answers by skill."""
        right: list[bool] = []
        for first in range(0, len(self.skills), 128):
            part = {name: value[first : first + 128] for name, value in self.arrays.items()}
            length = part["ids"].shape[1] - 1
            part["places"] = torch.where(  # of all rows one after another; the part begins anew
                part["places"] >= 0, part["places"] - first * length, part["places"]
            )
            patches, _, _ = self.painter.patches(part, len(part["ids"]))
            with torch.autocast(self.device, dtype=torch.bfloat16):
                seen = model.model.visual(patches, layout_of(part["grid"]))
                ids = part["ids"].long()
                rows = model.rows(ids[:, :-1], part["positions"], part["places"], seen)
                best = model.logits(rows).argmax(-1)
            is_right = (best == ids[:, 1:]) | (part["target"] == 0)
            right += is_right.all(-1).tolist()
        return {
            skill: round(
                sum(r for s, r in zip(self.skills, right, strict=True) if s == skill)
                / self.skills.count(skill),
                3,
            )
            for skill in sorted(set(self.skills))
        }


def _scale(plan: Plan, step: int, spent_s: float) -> float:
    """Return the scale of the rates: the schedule's, over the time instead of the steps."""
    rise = min(1.0, (step + 1) / plan.warmup)
    thousandths = round(1000 * spent_s / plan.seconds)
    return rise * schedule(thousandths, 1000, warmup=1, decay_share=plan.decay_share)


def _prefetched(pool: Path) -> "Queue[Arrays]":
    """Return a queue that a thread keeps full."""
    queue: Queue[Arrays] = Queue(maxsize=6)

    def fill(batches: Iterator[Arrays]) -> None:
        for batch in batches:
            queue.put(batch)

    Thread(target=fill, args=(read_pool(pool),), daemon=True).start()
    return queue


def _write(
    log: TextIO, step: int, losses: list[Tensor], spent_s: float, step_s: float, waited_s: float
) -> None:
    short, long = (loss.tolist() for loss in losses)
    record = {
        "step": step,
        "seconds": round(spent_s, 1),
        "answers": round(short[0], 4),
        "text": round(long[0], 4),
        "cells": round(short[2], 4),
        "colours": round(short[3], 4),
        "places": round(short[4] + short[5], 4),
        "ms": round(1e3 * step_s, 1),
        "waited_s": round(waited_s, 1),
    }
    log.write(json.dumps(record) + "\n")
    log.flush()
    if step % (2 * _LOG_EVERY) == 0:
        print(record, flush=True)


def _write_results(log: TextIO, step: int, results: dict[str, float]) -> None:
    record = {"step": step, "right": results}
    log.write(json.dumps(record) + "\n")
    print(record, flush=True)
