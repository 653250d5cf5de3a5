"""vLLM at the workloads of `spaninfer bench engine` and `spaninfer bench vision`.

Same shapes with random weights, same prompts, ids in and ids out, in one process beside nothing
else: what vLLM's own `LLM` takes for a batch, as its offline users call it. Its graphs, compiled
layers and prefix caching are on, as it starts by default. One JSON record per line on standard
output, which `spaninfer bench compare` reads.

Needs vLLM and a GPU: python benchmarks/vllm_beside.py qwen2.5-7b --only tpot_bs1,ttft_4000
                      python benchmarks/vllm_beside.py qwen2-vl-7b
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from io import BytesIO
from time import perf_counter
from typing import Any

import torch
import vllm
from PIL import Image
from spaninfer.bench.arguments import chosen
from spaninfer.bench.photographs import photograph
from spaninfer.bench.records import circumstances, summary
from spaninfer.bench.shapes import SHAPES, folder_of, write_processor, write_tokenizer
from spaninfer.bench.vision.conversations import OUTPUT_LEN, TURNS
from spaninfer.bench.workloads import WORKLOADS, Batch, Prompts, rehearsed, warm_up

CONTEXT = 16_384
MAX_RUNNING = 256
SIDE = 1024
CONVERSATIONS = (1, 32)

_QUESTION_LEN = 24  # tokens of a question with its role marks, in `spaninfer bench vision`
_SEED_BITS = 12
_PICTURES_PER_TURN = 4  # at least
_WARM_UP_SEED = 1 << 32


def load(shape: str, stack: ExitStack) -> vllm.LLM:
    """Return vLLM with random weights of a shape."""
    folder = stack.enter_context(folder_of(shape))
    sees = "vision_config" in SHAPES[shape]
    if sees:
        write_tokenizer(folder, SHAPES[shape]["vocab_size"])
        write_processor(folder)
    llm = vllm.LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=not sees,
        max_model_len=CONTEXT,
        max_num_seqs=MAX_RUNNING,
        gpu_memory_utilization=0.85,
        enable_prefix_caching=True,
    )
    llm.apply_model(draw)
    return llm


def draw(model: torch.nn.Module) -> None:
    """Draw weights as `--weights dummy` does.

    vLLM's own are so small that all tokens ask for the same few experts.
    """
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            weight.data.normal_(0.0, weight.shape[-1] ** -0.5)
        else:
            weight.data.normal_(0.0 if name.endswith("bias") else 1.0, 0.02)


def measure_text(
    llm: vllm.LLM, shape: str, names: Iterable[str], runs: int
) -> Iterator[dict[str, Any]]:
    """Yield a record per workload, each with the prompts that the engine gets."""
    wanted = set(names)
    vocab = SHAPES[shape]["vocab_size"]
    streams = [Prompts(vocab, seed) for seed in range(runs)]
    rehearsal = Prompts(vocab, _WARM_UP_SEED)
    for stream in streams:
        seconds_of(llm, warm_up(stream))
    for workload in WORKLOADS:
        drawn = [list(workload.batches(stream)) for stream in streams]
        alike = list(workload.batches(rehearsal))
        if workload.name not in wanted:
            continue
        seconds_of(llm, rehearsed(alike[0]))
        values = [
            value
            for batches in drawn
            for value in workload.values(batches, [seconds_of(llm, batch) for batch in batches])
        ]
        yield {"workload": workload.name, **summary(workload.unit, values)}


def seconds_of(llm: vllm.LLM, batch: Batch) -> float:
    """Return the time from the first request's start to the last one's end."""
    prompts = [{"prompt_token_ids": list(prompt)} for prompt in batch.prompts]
    begin = perf_counter()
    llm.generate(prompts, [_params(batch, length) for length in batch.output_lens], use_tqdm=False)
    return perf_counter() - begin


def _params(batch: Batch, length: int) -> vllm.SamplingParams:
    asked = batch.sampling
    return vllm.SamplingParams(
        temperature=asked.temperature,
        max_tokens=length,
        min_tokens=length,
        ignore_eos=True,
        detokenize=False,
        top_k=asked.top_k,
        top_p=asked.top_p,
    )


def measure_vision(llm: vllm.LLM, shape: str, runs: int) -> Iterator[dict[str, Any]]:
    """Yield records of conversations about a picture each, with the prefix cache and without."""
    for at_once in CONVERSATIONS:
        for is_cached in (True, False):
            count = max(at_once, _PICTURES_PER_TURN)
            first = (at_once << _SEED_BITS) + (0 if is_cached else count * (1 + runs))
            _turns(llm, shape, at_once, range(first, first + at_once), is_cached)
            found = [
                _turns(
                    llm,
                    shape,
                    at_once,
                    range(first + run * count, first + (run + 1) * count),
                    is_cached,
                )
                for run in range(1, 1 + runs)
            ]
            for turn in range(TURNS):
                yield {
                    "workload": f"{at_once} at a time",
                    "image": f"{SIDE}x{SIDE}",
                    "prefix_cache": is_cached,
                    "turn": turn + 1,
                    "of": "answers",
                    **summary("requests/s", [run[turn] for run in found]),
                }


def _turns(llm: vllm.LLM, shape: str, at_once: int, seeds: range, is_cached: bool) -> list[float]:
    """Return answers per second of each turn of conversations about the pictures of these seeds."""
    config = SHAPES[shape]
    prompts = Prompts(4000, seeds.start)  # ids that are words of the tokenizer
    seen = [
        config["vision_start_token_id"],
        config["image_token_id"],
        config["vision_end_token_id"],
    ]
    talks = [list(seen) for _ in seeds]
    files = [photograph(SIDE, seed) for seed in seeds]
    rates = []
    for _ in range(TURNS):
        for talk in talks:
            talk.extend(prompts.fresh(_QUESTION_LEN))
        begin = perf_counter()
        for place in range(0, len(talks), at_once):
            group = range(place, min(place + at_once, len(talks)))
            asked = [_asked(talks[each], files[each], is_cached) for each in group]
            answers = llm.generate(asked, _ANSWER, use_tqdm=False)
            for each, answer in zip(group, answers, strict=True):
                assert len(answer.outputs[0].token_ids) == OUTPUT_LEN
                talks[each].extend(prompts.fresh(OUTPUT_LEN))
        rates.append(len(talks) / (perf_counter() - begin))
    return rates


_ANSWER = vllm.SamplingParams(
    temperature=0, max_tokens=OUTPUT_LEN, min_tokens=OUTPUT_LEN, ignore_eos=True, detokenize=False
)


def _asked(talk: Sequence[int], file: bytes, is_cached: bool) -> dict[str, Any]:
    """Return a request with its picture decoded; one of its own salt finds nothing cached."""
    picture = Image.open(BytesIO(file)).convert("RGB")
    salt = {} if is_cached else {"cache_salt": os.urandom(8).hex()}
    return {"prompt_token_ids": list(talk), "multi_modal_data": {"image": picture}, **salt}


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("--only", help="comma-separated names of text workloads; default: all")
    parser.add_argument("--runs", type=int, default=2)
    asked = parser.parse_args()
    with ExitStack() as stack:
        llm = load(asked.shape, stack)
        if "vision_config" in SHAPES[asked.shape]:
            benchmark, records = "vision", measure_vision(llm, asked.shape, asked.runs)
        else:
            names = chosen(asked.only, tuple(workload.name for workload in WORKLOADS))
            benchmark, records = "engine", measure_text(llm, asked.shape, names, asked.runs)
        about = {"benchmark": benchmark, "peer": f"vllm {vllm.__version__}", "model": asked.shape}
        for record in records:
            print(json.dumps({**about, **record, **circumstances("cuda")}), flush=True)
            print(record["workload"], record["median"], record["unit"], file=sys.stderr)


if __name__ == "__main__":
    main()
