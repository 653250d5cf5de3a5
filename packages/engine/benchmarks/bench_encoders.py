"""Sentences per second of encoders on the CPU beside ONNX Runtime, in turns; a JSON record a line.

    python bench_encoders.py --shape minilm-l6 --rounds 7

Needs torch, transformers, onnx and onnxruntime: the same random weights are saved for the engine
and exported for ONNX Runtime, in float32 and quantised to int8 by its own tool. Every round, each
program embeds the same sentences, in an order that changes; ratios are medians over rounds. Texts
are token ids, so that tokenizers are no part of it; ONNX Runtime gets them sorted by length, in
batches, padded to the longest of each. A cosine is the least over sentences, to float32 of torch.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spaninfer_engine import Engine

Rows = NDArray[np.float32]
Program = Callable[[Sequence[list[int]]], Rows]

SHAPES = {"minilm-l6": 6, "bge-small": 12}  # layers; 384 wide, 12 heads, 1,536 inside
LENGTHS = {"mixed": (8, 128), "long": (128, 129)}  # tokens of a sentence, from and below
BATCH = 32  # of ONNX Runtime: on two cores larger ones were slower (2026-11)


def main() -> None:
    """Print a record per workload and program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="minilm-l6")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sentences", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        truth = _write(Path(folder), SHAPES[asked.shape])
        programs = _programs(Path(folder), asked.threads)
        for name, bounds in LENGTHS.items():
            lengths = np.random.default_rng(0).integers(*bounds, asked.sentences)
            texts = [
                np.random.default_rng(i).integers(3, 30000, length).tolist()
                for i, length in enumerate(lengths)
            ]
            expected = truth(texts)
            cosines = {
                key: float((run(texts) * expected).sum(1).min()) for key, run in programs.items()
            }
            seconds = _in_turns(programs, texts, asked.rounds)
            for key, taken in seconds.items():
                rates = [len(texts) / each for each in taken]
                record = {
                    "benchmark": "encoders",
                    "shape": asked.shape,
                    "workload": name,
                    "program": key,
                    "sentences_per_s": round(median(rates), 1),
                    "least_cosine": round(cosines[key], 6),
                    "over": {
                        peer: round(median(p / t for p, t in zip(others, taken, strict=True)), 2)
                        for peer, others in seconds.items()
                        if peer.startswith("onnxruntime")
                    },
                    "threads": asked.threads,
                    "cpu": _cpu_name(),
                }
                print(json.dumps(record), flush=True)


def _in_turns(
    programs: dict[str, Program], texts: Sequence[list[int]], rounds: int
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {key: [] for key in programs}
    for number in range(rounds):
        for key in sorted(programs, reverse=number % 2 == 0):
            begin = perf_counter()
            programs[key](texts)
            seconds[key].append(perf_counter() - begin)
    return seconds


def _write(folder: Path, layers: int) -> Program:
    """Write the weights for all programs; return what computes them by torch in float32."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=384, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=12,
        initializer_range=0.05,
    )  # fmt: skip
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(folder)

    class Hidden(torch.nn.Module):
        """Token ids and mask to hidden states."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    example = torch.ones(2, 16, dtype=torch.long)
    axes = {0: "batch", 1: "tokens"}
    torch.onnx.export(
        Hidden().eval(), (example, example), folder / "model.onnx", input_names=["ids", "mask"],
        output_names=["hidden"], dynamic_axes={"ids": axes, "mask": axes, "hidden": axes},
        dynamo=False, opset_version=17,
    )  # fmt: skip

    def truth(texts: Sequence[list[int]]) -> Rows:
        with torch.no_grad():
            rows = [model(torch.tensor([text])).last_hidden_state[0].mean(0) for text in texts]
        return _unit(torch.stack(rows).numpy())

    return truth


def _programs(folder: Path, threads: int) -> dict[str, Program]:
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(folder / "model.onnx", folder / "int8.onnx", weight_type=QuantType.QInt8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads

    def session(file: str) -> Any:
        path = str(folder / file)
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    return {
        "onnxruntime float32": _padded(session("model.onnx")),
        "onnxruntime int8": _padded(session("int8.onnx")),
        "spaninfer float32": _ours(folder),
        "spaninfer int8": _ours(folder, quantize="int8"),
    }


def _ours(folder: Path, **options: Any) -> Program:
    engine = Engine(folder, backend="cpu", dtype="float32", **options)
    return lambda texts: engine.embed(texts, normalize=True)


def _padded(session: Any) -> Program:
    def run(texts: Sequence[list[int]]) -> Rows:
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        rows = np.empty((len(texts), 384), np.float32)
        for first in range(0, len(order), BATCH):
            some = order[first : first + BATCH]
            longest = max(len(texts[number]) for number in some)
            ids, mask = np.zeros((2, len(some), longest), np.int64)
            for row, number in enumerate(some):
                ids[row, : len(texts[number])] = texts[number]
                mask[row, : len(texts[number])] = 1
            [hidden] = session.run(None, {"ids": ids, "mask": mask})
            weights = mask[..., None].astype(np.float32)
            rows[some] = (hidden * weights).sum(1) / weights.sum(1)
        return _unit(rows)

    return run


def _unit(rows: Rows) -> Rows:
    unit: Rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


if __name__ == "__main__":
    main()
