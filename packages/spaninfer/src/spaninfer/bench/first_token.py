"""A process that ends with its first token: python -m spaninfer.bench.first_token '{"model": …}'"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import typer
from spaninfer_engine import Engine, EngineConfig
from spaninfer_engine.tools import complete

from spaninfer import show
from spaninfer.bench.engine import described
from spaninfer.bench.workloads import GREEDY, Prompts


def main() -> None:
    """Generate one token with an engine of the EngineConfig in the first argument; print it."""
    with show.errors_as_sentences(), Engine(EngineConfig(**json.loads(sys.argv[1]))) as engine:
        prompt = Prompts(engine.tokenizer.vocab_size, seed=0).fresh(64)
        complete(engine.start_request(prompt, replace(GREEDY, max_tokens=1))[0])
        answer = {"engine": described(engine), "device": engine.resolved.device}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    try:
        main()
    except typer.Exit as ended:  # what is wrong stands on standard error
        sys.exit(ended.exit_code)
