"""Limits of an engine, from its options: lengths, spans, memory, and the reasons. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spaninfer_engine.cache.memory_plan import (
    Demand,
    Needs,
    Stored,
    fit,
    gib,
    longest,
    span_bytes,
    spans_per_request,
)
from spaninfer_engine.cache.state_table import SNAPSHOT_TOKENS
from spaninfer_engine.config import Decision, EngineConfig, KVDType, KVOffload, Resolved
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.spec.nodes import CacheGroup, Decoder, Encoder, Model
from spaninfer_engine.spec.tree import parameter_count
from spaninfer_engine.startup.compute import Compute
from spaninfer_engine.startup.kv_offload import decide_kv_offload, offload_decisions
from spaninfer_engine.step.plan import Tuning

STORED: Mapping[KVDType, Stored] = {
    "float32": Stored(32),
    "bfloat16": Stored(16),
    "float16": Stored(16),
    "fp8": Stored(8, scale_bytes=4),
    "int8": Stored(8, scale_bytes=8),  # a zero and a scale
    "uint4": Stored(4, scale_bytes=8),
}

# 256 decodes cost the scheduler 245 µs a step; with spans of 16 tokens, which would share a little
# more between requests, 312 µs (benchmarks/bench_scheduler.py, shared cores, 2026-11-21)
SPAN_LEN = 32
TOKEN_TABLE_BYTES = 4 << 30  # for the tokens of as many requests as may run; taken as they grow
HOST_CACHE_BYTES = 4 << 30  # a server should not fill a laptop because it may


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that spans may take, and who set the limit."""

    budget: int
    why: str


def decide_budget(
    asked: EngineConfig, compute: Compute, available: int, share: float, needs: Needs
) -> Memory:
    """Choose how many bytes the span cache may take.

    `available` are those that are free beside the weights; of what else is needed leaves, spans may
    take the part `share` unasked. ConfigError where a device has too few.
    """
    left = available - needs.steps - needs.graphs - needs.towers - needs.encodings
    memory = asked.memory_bytes
    if compute.device != "cpu" and left < (memory or 1):
        wanted = f"--memory is {gib(memory)}" if memory else "the KV cache needs some"
        raise ConfigError(
            f"{wanted}, and {gib(max(left, 0))} of the device's memory are left beside {needs}; "
            "lower --memory, --step-tokens or --max-running"
        )
    if memory is not None:
        return Memory(memory, "requested")
    budget = int(left * share)
    if compute.device == "cpu" and budget > HOST_CACHE_BYTES:
        return Memory(HOST_CACHE_BYTES, "the most that is reserved by default; --memory sets it")
    beside = f" beside {needs}" if str(needs) else ""
    return Memory(budget, f"{share:.0%} of the {gib(left)} that are free{beside}")


def refuse_beyond_machine(memory: int | None, total: int) -> None:
    """ConfigError where more is requested the span cache than the machine has."""
    if memory is not None and memory > total:
        raise ConfigError(
            f"--memory is {gib(memory)}, and this machine gives a process {gib(total)} at most; "
            "lower it, or leave it out and have it measured"
        )


def decide_demand(asked: EngineConfig, compute: Compute, model: Model) -> Demand:
    """Choose the most that requests and steps can be, before memory limits the length."""
    tuning, max_running = compute.backend.tuning, asked.max_running
    least = tuning.step_tokens
    if isinstance(model, Encoder):  # nothing of a text is kept, so that they need not be few
        least, max_running = tuning.text_tokens or least, max(tuning.texts, max_running)
    return Demand(
        max_len=model.max_len if asked.max_len is None else asked.max_len,
        max_running=max_running,
        step_tokens=asked.step_tokens or max(least, max_running),
    )


def stored_cache(asked: EngineConfig, compute: Compute) -> Stored:
    """Return the format of the KV cache as the backend holds it."""
    stored = STORED[asked.kv_dtype or compute.dtype]
    return replace(stored, latent_scales=compute.backend.latent_scales)


def resolve(
    asked: EngineConfig, name: str, decoder: Decoder, compute: Compute, memory: Memory
) -> Resolved:
    """Decide the rest of a decoder: lengths, spans and limits."""
    span_len = asked.span_len or SPAN_LEN
    stored = stored_cache(asked, compute)
    step_tokens = decide_demand(asked, compute, decoder).step_tokens
    max_len, why_len = _max_len(asked, decoder, memory, span_len, stored, step_tokens)
    demand = Demand(max_len, asked.max_running, step_tokens)
    num_spans = fit(
        decoder.groups,
        budget=memory.budget,
        span_len=span_len,
        stored=stored,
        demand=demand,
    )
    offload = decide_kv_offload(
        asked, decoder.groups, span_len, stored, on_host=compute.device == "cpu"
    )
    decisions = (
        Decision("context", f"{max_len:,} tokens", why_len),
        *_spans(decoder.groups, num_spans, memory, span_len, stored, demand),
        Decision(
            "step",
            f"{step_tokens:,} tokens, {asked.max_running} requests",
            "longer prompts are computed in pieces between decodes",
        ),
        Decision(
            "prefix cache",
            "on" if asked.prefix_cache else "off",
            "equal beginnings are computed once" if asked.prefix_cache else "requested",
        ),
        *offload_decisions(offload, span_len),
        *_graphs(asked, compute),
    )
    return resolved(
        asked, name, decoder, compute, demand, Allocation(decisions, num_spans, offload)
    )


@dataclass(frozen=True, slots=True)
class Allocation:
    """The use of a model's memory: spans of each cache group, and the tiers behind them.

    `decisions` say so, and how large steps are.
    """

    decisions: Sequence[Decision]
    num_spans: tuple[int, ...] = ()
    kv_offload: KVOffload | None = None


def resolved(
    asked: EngineConfig,
    name: str,
    model: Model,
    compute: Compute,
    demand: Demand,
    allocation: Allocation,
) -> Resolved:
    """Put together what was decided of a model."""
    parameters = f"{parameter_count(model):,}"
    return Resolved(
        name=name,
        architecture=model.architecture,
        backend=compute.backend.name,
        device=compute.device,
        dtype=compute.dtype,
        kv_dtype=asked.kv_dtype or compute.dtype,
        max_len=demand.max_len,
        span_len=asked.span_len or SPAN_LEN,
        num_spans=allocation.num_spans,
        max_running=demand.max_running,
        step_tokens=demand.step_tokens,
        max_waiting=asked.max_waiting,
        step_timeout_s=asked.step_timeout_s,
        prefix_cache=asked.prefix_cache,
        kv_offload=allocation.kv_offload,
        tuning=_tuning(compute, demand.step_tokens, model.vocab),
        seed=asked.seed,
        graphs=isinstance(model, Decoder) and has_graphs(asked, compute),
        batch_invariant=asked.batch_invariant,
        decisions=(
            Decision("parameters", parameters, f"{len(model.layers)} layers"),
            *([_DUMMY] if asked.weights == "dummy" else []),
            *compute.decisions,
            *allocation.decisions,
        ),
    )


def _tuning(compute: Compute, step_tokens: int, vocab: int) -> Tuning:
    """Return the backend's tuning, for steps of that many tokens and a vocabulary of that size."""
    tuning = compute.backend.tuning
    return replace(
        tuning,
        step_tokens=step_tokens,
        pause_tokens=min(tuning.pause_tokens, step_tokens),
        prompt_logits=compute.backend.prompt_logits(vocab),
    )


def has_graphs(asked: EngineConfig, compute: Compute) -> bool:
    """Return True if decode steps are captured as CUDA graphs."""
    return compute.backend.has_graphs and asked.graphs is not False


def _spans(
    groups: Sequence[CacheGroup],
    num_spans: Sequence[int],
    memory: Memory,
    span_len: int,
    stored: Stored,
    demand: Demand,
) -> list[Decision]:
    """Return the rows about the KV cache."""
    held = tuple(zip(num_spans, groups, strict=True))
    taken = sum(count * span_bytes(group, span_len, stored) for count, group in held)
    states = [(count, group) for count, group in held if group.state is not None]
    at_once = min(count / spans_per_request(group, span_len, demand) for count, group in held)
    return [
        Decision(
            "KV cache",
            f"{taken / 2**20:,.0f} MiB",
            f"within {memory.budget / 2**20:,.0f} MiB: {memory.why}",
        ),
        Decision(
            "spans",
            " + ".join(f"{count:,}" for count, group in held if group.state is None) or "none",
            f"of {span_len} tokens; {at_once:,.{at_once < 10:d}f} requests of full length at once",
        ),
        *(
            Decision(
                "states",
                f"{count:,}",
                f"of {span_bytes(group, span_len, stored) / 2**20:,.1f} MiB: one for each request, "
                f"the others for prefixes, which are found at the end of earlier prompts and every "
                f"{SNAPSHOT_TOKENS:,} tokens",
            )
            for count, group in states
        ),
    ]


def _graphs(asked: EngineConfig, compute: Compute) -> list[Decision]:
    """Return the row about graphs; none where it would not be looked for."""
    if not compute.backend.has_graphs:
        return []
    if asked.graphs is None:
        return [Decision("graphs", "on", "decode steps are launched as a whole")]
    return [Decision("graphs", "on" if asked.graphs else "off", "requested")]


_DUMMY = Decision("weights", "dummy", "requested: random numbers, whose answers mean nothing")


def _max_len(
    asked: EngineConfig,
    decoder: Decoder,
    memory: Memory,
    span_len: int,
    stored: Stored,
    step_tokens: int,
) -> tuple[int, str]:
    most = TOKEN_TABLE_BYTES // (4 * asked.max_running)
    if asked.max_len is not None:
        if asked.max_len > most:
            raise ConfigError(
                f"max_len is {asked.max_len:,}; {asked.max_running} requests of at most "
                f"{most:,} tokens are supported; lower max_len or max_running"
            )
        if asked.max_len > decoder.max_len:
            raise ConfigError(
                f"max_len is {asked.max_len}; the model was made for {decoder.max_len} positions"
            )
        return asked.max_len, "requested"
    fitting = longest(
        decoder.groups,
        budget=memory.budget,
        span_len=span_len,
        stored=stored,
        max_len=min(decoder.max_len, most),
        step_tokens=step_tokens,
    )
    if fitting < decoder.max_len:
        return fitting, f"what fits; the model was made for {decoder.max_len:,}"
    return decoder.max_len, "what the model was made for"


def served_name(asked: EngineConfig, checkpoint_name: str) -> str:
    """Return the name under which clients find the model.

    Of a file's name, what JSON cannot write is replaced; raises ConfigError for one that was asked.
    """
    if asked.served_name:
        if not asked.served_name.isprintable():
            raise ConfigError(
                f"the model's name {asked.served_name!r} has characters that cannot be printed; "
                "give it another"
            )
        return asked.served_name
    return "".join(each if each.isprintable() else "\ufffd" for each in checkpoint_name)
