"""Time whole generations of a model: one JSON line per number of requests at once.

    python benchmarks/bench_throughput.py [MODEL] [--backend cpu]

Every request has its own random prompt and the same number of tokens to come, so nothing is found
in the prefix cache. Reported are output tokens per second of the whole, and of the decoding alone.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from importlib.metadata import version

from spaninfer_engine import Engine, SamplingParams

PROMPT_LEN, OUTPUT_LEN, ROUNDS = 64, 128, 5
CONCURRENCY = (1, 8, 32)


def main() -> None:
    """Print a record per number of requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--backend", default=None)
    parser.add_argument("--dtype", default=None)
    asked = parser.parse_args()
    with Engine(asked.model, backend=asked.backend, dtype=asked.dtype) as engine:
        for requests in CONCURRENCY:
            print(json.dumps(measure(engine, requests)), flush=True)


def measure(engine: Engine, requests: int) -> dict[str, object]:
    """Return the record of one case: medians over rounds, after one that is not counted."""
    rates = [_round(engine, requests) for _ in range(ROUNDS + 1)][1:]
    whole, decoding = (statistics.median(column) for column in zip(*rates, strict=True))
    return {
        "benchmark": "throughput",
        "model": engine.resolved.name,
        "backend": engine.resolved.backend,
        "dtype": engine.resolved.dtype,
        "requests": requests,
        "prompt_len": PROMPT_LEN,
        "output_len": OUTPUT_LEN,
        "output_tokens_per_s": round(whole, 1),
        "decode_tokens_per_s": round(decoding, 1),
        "python": platform.python_version(),
        "machine": platform.processor() or platform.machine(),
        "version": version("spaninfer-engine"),
    }


def _round(engine: Engine, requests: int) -> tuple[float, float]:
    """Return output tokens per second, from the start and from the last first token."""
    vocab = engine.tokenizer.vocab_size
    prompts = [[random.randrange(vocab) for _ in range(PROMPT_LEN)] for _ in range(requests)]
    sampling = SamplingParams(temperature=0, max_tokens=OUTPUT_LEN, ignore_eos=True)
    begin = time.monotonic()
    usages = [completion.usage for completion in engine.generate(prompts, sampling)]
    tokens = sum(usage.output_len for usage in usages)
    end = max(usage.finished_s or begin for usage in usages)
    decoding = max(usage.first_token_s or begin for usage in usages)
    return tokens / (end - begin), (tokens - requests) / (end - decoding)


if __name__ == "__main__":
    main()
