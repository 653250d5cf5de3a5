"""Sentences per second of encoders on the CPU beside ONNX Runtime, in turns; a JSON record a line.

    python bench_encoders.py --shape minilm-l6 --texts book.txt --rounds 7

Needs torch, transformers, onnx and onnxruntime: the same random weights are saved for the engine
and exported for ONNX Runtime, whose own tool fuses its operators and quantises them to int8. Every
round, each program embeds the same sentences, in an order that changes; ratios are medians over
rounds, of seconds and of CPU seconds, which neighbours on the machine lengthen less. Texts are
token ids, so that tokenizers are no part of it, as long as sentences of `--texts`; ONNX Runtime
gets them sorted by length, in batches, padded to the longest of each. bge-small is pooled by CLS,
as published. A cosine is the least over sentences, to float32 of torch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from spaninfer_engine import Engine
from spaninfer_host_limits import cpu_name, usable_cpus

Rows = NDArray[np.float32]
Texts = Sequence[list[int]]
Program = Callable[[Texts], Rows]


@dataclass(frozen=True, slots=True)
class Shape:
    """Layers of an encoder, 384 wide, with 12 heads and 1,536 inside; how its texts are pooled."""

    layers: int
    pooling: Literal["mean", "cls"]


SHAPES = {"minilm-l6": Shape(6, "mean"), "bge-small": Shape(12, "cls")}
LONGEST = 256  # tokens of a sentence, as the published MiniLM takes them
BATCHES = (8, 16, 32)  # of ONNX Runtime, which gets the one that is fastest for a workload
PEERS = ("onnxruntime float32", "onnxruntime int8")


def main() -> None:
    """Print a record per workload and program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="minilm-l6")
    parser.add_argument("--texts", type=Path, help="whose sentences' lengths are taken")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument(
        "--quantize",
        nargs="*",
        default=["w13a13", "int8", "w7a7:row"],
        help="of ours, beside float32; a group behind a colon",
    )
    asked = parser.parse_args()
    workloads = {"long": [128] * (asked.sentences // 4)}
    if asked.texts is not None:
        workloads[asked.texts.stem] = _lengths(asked.texts)[: asked.sentences]
    with tempfile.TemporaryDirectory() as folder:
        pooling = SHAPES[asked.shape].pooling
        truth = write_weights(Path(folder), SHAPES[asked.shape], for_onnx=True)
        sessions = {key: (each, pooling) for key, each in _sessions(Path(folder)).items()}
        engines = {"spaninfer float32": ours(Path(folder))}
        engines |= {f"spaninfer {kind}": ours(Path(folder), kind) for kind in asked.quantize}
        for name, lengths in workloads.items():
            rng = np.random.default_rng(0)
            texts = [rng.integers(3, 30000, length).tolist() for length in lengths]
            batches = {key: _best_batch(*session, texts) for key, session in sessions.items()}
            peers = {key: partial(_padded, *sessions[key], batches[key]) for key in sessions}
            programs: dict[str, Program] = {**peers, **engines}
            expected = truth(texts)
            cosines = {
                key: float((run(texts) * expected).sum(1).min()) for key, run in programs.items()
            }
            spent = _in_turns(programs, texts, asked.rounds)
            for key, taken in spent.items():
                record = {
                    "benchmark": "encoders",
                    "shape": asked.shape,
                    "workload": name,
                    "mean_tokens": round(float(np.mean(lengths)), 1),
                    "program": key,
                    "batch": batches.get(key),
                    "sentences_per_s": round(len(texts) / median(each.wall for each in taken), 1),
                    "sentences_per_cpu_s": round(
                        len(texts) / median(each.cpu for each in taken), 1
                    ),
                    "least_cosine": round(cosines[key], 6),
                    "over": {peer: _over(spent[peer], taken) for peer in PEERS},
                    "threads": usable_cpus(),
                    "cpu": cpu_name(),
                    "load": round(os.getloadavg()[0], 2),
                }
                print(json.dumps(record), flush=True)


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of a run, and CPU seconds of all threads."""

    wall: float
    cpu: float


def _over(theirs: list[Spent], ours: list[Spent]) -> dict[str, float]:
    pairs = list(zip(theirs, ours, strict=True))
    return {
        "by_seconds": round(median(a.wall / b.wall for a, b in pairs), 2),
        "by_cpu_seconds": round(median(a.cpu / b.cpu for a, b in pairs), 2),
    }


def _lengths(file: Path) -> list[int]:
    """Return the tokens of a text's sentences: words, marks, and one at each end."""
    sentences = re.split(r"(?<=[.!?])\s+", file.read_text(encoding="utf-8"))
    counts = [len(re.findall(r"\w+|[^\w\s]", each)) + 2 for each in sentences]
    return [min(count, LONGEST) for count in counts if count > 2]


def _in_turns(programs: dict[str, Program], texts: Texts, rounds: int) -> dict[str, list[Spent]]:
    spent: dict[str, list[Spent]] = {key: [] for key in programs}
    for number in range(rounds):
        for key in sorted(programs, reverse=number % 2 == 0):
            spent[key].append(_spent(programs[key], texts))
    return spent


def _spent(program: Program, texts: Texts) -> Spent:
    wall, cpu = perf_counter(), process_time()
    program(texts)
    return Spent(perf_counter() - wall, process_time() - cpu)


def write_weights(folder: Path, shape: Shape, *, for_onnx: bool = False) -> Program:
    """Write the weights, also `for_onnx`; return what computes with them by torch in float32."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=384, intermediate_size=1536, num_hidden_layers=shape.layers,
        num_attention_heads=12, initializer_range=0.05, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(folder)
    _write_pooling(folder, shape.pooling)

    if for_onnx:
        _export(model, folder / "model.onnx")

    def truth(texts: Texts) -> Rows:
        with torch.no_grad():
            hidden = [model(torch.tensor([text])).last_hidden_state[0].numpy() for text in texts]
        mean = shape.pooling == "mean"
        return _unit(np.stack([rows.mean(0) if mean else rows[0] for rows in hidden]))

    return truth


def _write_pooling(folder: Path, pooling: str) -> None:
    """Write the files of sentence-transformers that name the pooling."""
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling")
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.{kind}"}
        for number, (kind, path) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    config = {"word_embedding_dimension": 384, "pooling_mode": pooling}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))


def _export(model: Any, file: Path) -> None:
    """Write a model from token ids and mask to hidden states."""
    import torch

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
        Hidden().eval(), (example, example), file, input_names=["ids", "mask"],
        output_names=["hidden"], dynamic_axes={"ids": axes, "mask": axes, "hidden": axes},
        dynamo=False, opset_version=17,
    )  # fmt: skip


def _sessions(folder: Path) -> dict[str, Any]:
    """Return ONNX Runtime's sessions, their operators fused by its tool for transformers."""
    import onnx
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer

    fused = optimizer.optimize_model(
        str(folder / "model.onnx"), model_type="bert", num_heads=12, hidden_size=384
    )
    counts = fused.get_fused_operator_statistics()
    if not counts.get("Attention"):
        raise SystemExit(f"onnxruntime's optimizer fused no attention: {counts}")
    fused.save_model_to_file(str(folder / "fused.onnx"))
    quantize_dynamic(
        folder / "fused.onnx", folder / "int8.onnx", weight_type=QuantType.QInt8,
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = usable_cpus()

    def session(file: str) -> Any:
        path = str(folder / file)
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    return {"onnxruntime float32": session("fused.onnx"), "onnxruntime int8": session("int8.onnx")}


def ours(folder: Path, format: str = "") -> Program:
    """Return an engine with the weights of a folder, quantised to a format."""
    kind, _, group = format.partition(":")
    channels: Any = int(group) if group.isdigit() else group or None
    engine = Engine(
        folder,
        backend="cpu",
        dtype="float32",
        quantize=cast(Any, kind or None),
        quantize_group=channels,
    )
    return lambda texts: engine.embed(texts, normalize=True)


def _best_batch(session: Any, pooling: str, texts: Texts) -> int:
    """Return the batch with the least CPU time, of three runs each."""
    return min(
        BATCHES,
        key=lambda batch: min(
            _spent(partial(_padded, session, pooling, batch), texts).cpu for _ in range(3)
        ),
    )


def _padded(session: Any, pooling: str, batch: int, texts: Texts) -> Rows:
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    rows = np.empty((len(texts), 384), np.float32)
    for first in range(0, len(order), batch):
        some = order[first : first + batch]
        longest = max(len(texts[number]) for number in some)
        ids, mask = np.zeros((2, len(some), longest), np.int64)
        for row, number in enumerate(some):
            ids[row, : len(texts[number])] = texts[number]
            mask[row, : len(texts[number])] = 1
        [hidden] = session.run(None, {"ids": ids, "mask": mask})
        weights = mask[..., None].astype(np.float32)
        means = (hidden * weights).sum(1) / weights.sum(1)
        rows[some] = means if pooling == "mean" else hidden[:, 0]
    return _unit(rows)


def _unit(rows: Rows) -> Rows:
    unit: Rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


if __name__ == "__main__":
    main()
