"""Tokens per second of encoders on a GPU beside torch and transformers; a JSON record a line.

    python bench_encoders_cuda.py --shape bert-base --rounds 5

Weights are random, in bfloat16; texts are token ids, so that tokenizers are no part of it. Every
round each program computes the same texts: `embed` is Engine.embed, `steps` the same behind the
check of the texts, `device` one step over and over with nothing read in between, of which
`host_ms` is the time until it is launched; `torch` is backend torch with steps of the same size;
`transformers` (where it is installed) its own model with SDPA, on batches of texts of similar
length, padded to the longest, and their means.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from spaninfer_engine import Engine
from spaninfer_engine.request.texts import Text
from spaninfer_engine.schedule.texts import steps_of

Texts = Sequence[list[int]]

_BERT = {
    "architectures": ["BertModel"], "model_type": "bert", "vocab_size": 30_522,
    "type_vocab_size": 2, "max_position_embeddings": 512, "hidden_act": "gelu",
    "layer_norm_eps": 1e-12, "torch_dtype": "bfloat16", "num_attention_heads": 12,
}  # fmt: skip
_SMALL = {**_BERT, "hidden_size": 384, "intermediate_size": 1536}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "bert-base": {**_BERT, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12},
    "minilm-l6": {**_SMALL, "num_hidden_layers": 6},
    "bge-small": {**_SMALL, "num_hidden_layers": 12},
    "modernbert-base": {
        "architectures": ["ModernBertModel"], "model_type": "modernbert", "vocab_size": 50_368,
        "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22,
        "num_attention_heads": 12, "max_position_embeddings": 8192, "local_attention": 128,
        "global_attn_every_n_layers": 3, "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0, "norm_eps": 1e-5, "hidden_activation": "gelu",
        "torch_dtype": "bfloat16", "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "cls_token_id": 1, "sep_token_id": 2, "norm_bias": False, "attention_bias": False,
        "mlp_bias": False,
    },
}  # fmt: skip
TOKENS = 1 << 18  # of a round
STEP_TOKENS, STEP_TEXTS = 32_768, 2048  # as backend cuda takes them by itself
REPEATS = 12  # of a step that is launched over and over


def main() -> None:
    """Print a record per workload and program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="bert-base")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    config = SHAPES[asked.shape]
    with TemporaryDirectory() as folder, ExitStack() as stack:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        ours, plain = (stack.enter_context(_engine(folder, name)) for name in ("cuda", "torch"))
        peer = _peer(config)
        for workload, lengths in _workloads().items():
            rng = np.random.default_rng(0)
            texts = [rng.integers(3, 30_000, length).tolist() for length in lengths]
            programs: dict[str, Callable[[Texts], None]] = {
                "embed": ours.embed, "steps": partial(_steps, ours), "torch": plain.embed,
                **({} if peer is None else {"transformers": partial(_padded, peer)}),
            }  # fmt: skip
            records = [*_measured(programs, texts, asked.rounds), _on_device(ours, texts)]
            for record in records:
                about = {
                    "benchmark": "encoders on a gpu",
                    "shape": asked.shape,
                    "workload": workload,
                    "texts": len(texts),
                    "mean_tokens": round(float(np.mean(lengths)), 1),
                    "device": torch.cuda.get_device_name(),
                    "torch": torch.__version__,
                }
                print(json.dumps(about | record), flush=True)


def _workloads() -> dict[str, list[int]]:
    """Return the lengths of texts: all of 128 or of 512 tokens, or mixed from 4 to 512."""
    drawn = np.random.default_rng(1).lognormal(4.0, 0.9, TOKENS // 80)
    mixed = np.clip(drawn, 4, 512).astype(int).tolist()
    return {"128": [128] * (TOKENS // 128), "512": [512] * (TOKENS // 512), "mixed": mixed}


def _engine(folder: str, backend: Any) -> Engine:
    return Engine(
        folder, backend=backend, device="cuda", dtype="bfloat16", weights="dummy",
        step_tokens=STEP_TOKENS, max_running=STEP_TEXTS,
    )  # fmt: skip


def _measured(
    programs: Mapping[str, Callable[[Texts], Any]], texts: Texts, rounds: int
) -> Iterator[dict[str, Any]]:
    """Yield tokens per second of each program; a round before the first warms up."""
    spent: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(rounds + 1):
        for name in sorted(programs, reverse=number % 2 == 0):
            torch.cuda.synchronize()
            begin = perf_counter()
            programs[name](texts)
            torch.cuda.synchronize()
            spent[name].append(perf_counter() - begin)
    tokens = sum(map(len, texts))
    for name, (_, *seconds) in spent.items():
        yield {
            "program": name,
            "tokens_per_s": round(tokens / median(seconds)),
            "texts_per_s": round(len(texts) / median(seconds)),
            "runs": [round(tokens / each) for each in seconds],
        }


def _steps(engine: Engine, texts: Texts) -> None:
    engine.rows_of([Text(np.array(text)) for text in texts])


def _on_device(engine: Engine, texts: Texts) -> dict[str, Any]:
    """Return what the device computes of the first step of texts, launched over and over."""
    lengths = list(map(len, texts))
    first, *_ = steps_of(lengths, step_tokens=STEP_TOKENS, max_texts=STEP_TEXTS)
    step = [Text(np.array(texts[number])) for number in first]
    runner: Any = engine._core._runner  # type: ignore[union-attr]
    runner.launch(step).wait()
    begin, launched_s = perf_counter(), 0.0
    for _ in range(REPEATS):
        before = perf_counter()
        launched = runner.launch(step)
        launched_s += perf_counter() - before
    launched.wait()
    seconds = (perf_counter() - begin) / REPEATS
    tokens = sum(lengths[number] for number in first)
    return {
        "program": "device",
        "tokens_per_s": round(tokens / seconds),
        "step_tokens": tokens,
        "step_texts": len(step),
        "step_ms": round(1000 * seconds, 3),
        "host_ms": round(1000 * launched_s / REPEATS, 3),
    }


def _peer(config: Mapping[str, Any]) -> Any:
    """Return transformers' model of these sizes; None without transformers."""
    with suppress(ImportError):
        import transformers

        known = transformers.AutoConfig.for_model(**config)
        known._attn_implementation = "sdpa"
        model = transformers.AutoModel.from_config(known)
        return model.to("cuda", torch.bfloat16).eval()
    return None


@torch.inference_mode()
def _padded(model: Any, texts: Texts) -> None:
    """Compute means of texts in batches of similar length, as large as our steps."""
    order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
    first = 0
    while first < len(order):
        longest = len(texts[order[first]])
        some = order[first : first + max(1, STEP_TOKENS // longest)]
        ids, mask = torch.zeros((2, len(some), longest), dtype=torch.long)
        for row, number in enumerate(some):
            ids[row, : len(texts[number])] = torch.tensor(texts[number])
            mask[row, : len(texts[number])] = 1
        ids, mask = ids.to("cuda"), mask.to("cuda")
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask[..., None].to(hidden.dtype)
        ((hidden * weights).sum(1) / weights.sum(1)).float().cpu()
        first += len(some)


if __name__ == "__main__":
    main()
