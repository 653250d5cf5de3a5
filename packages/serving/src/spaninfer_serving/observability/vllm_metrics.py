"""Our figures under vLLM's names, for the dashboards, autoscalers and gateways that read those."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from spaninfer_engine import EngineStats, FinishReason

HISTOGRAMS: Mapping[str, str] = {
    "spaninfer_first_token_seconds": "vllm:time_to_first_token_seconds",
    "spaninfer_token_seconds": "vllm:request_time_per_output_token_seconds",
    "spaninfer_request_seconds": "vllm:e2e_request_latency_seconds",
    "spaninfer_queue_seconds": "vllm:request_queue_time_seconds",
    "spaninfer_prompt_tokens": "vllm:request_prompt_tokens",
    "spaninfer_output_tokens": "vllm:request_generation_tokens",
}
REASONS: Mapping[FinishReason, str] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.STOPPED: "abort",
    FinishReason.DEADLINE: "abort",
    FinishReason.ERROR: "error",
}


def vllm_families(ours: Sequence[Metric], stats: EngineStats) -> Iterator[Metric]:
    """Yield every figure that both have, with vLLM's labels."""
    labels = {"model_name": stats.model, "engine": "0"}
    for family in ours:
        if name := HISTOGRAMS.get(family.name):
            yield _renamed(family, name, labels)
    for name, text, value in (
        ("num_requests_running", "Choices that are running", stats.running),
        ("num_requests_waiting", "Choices that are waiting", stats.waiting),
        ("kv_cache_usage_perc", "Spans in use, from 0 to 1", stats.span_usage),
    ):
        gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=tuple(labels))
        gauge.add_metric(tuple(labels.values()), float(value))
        yield gauge
    asked = stats.prefix_hit_tokens + stats.prefix_miss_tokens
    for name, text, value in (
        ("prefix_cache_queries", "Prompt tokens looked up", asked),
        ("prefix_cache_hits", "Prompt tokens found", stats.prefix_hit_tokens),
        ("prompt_tokens", "Tokens of prompts", asked),
        ("generation_tokens", "Tokens generated", stats.generated_tokens),
        ("num_preemptions", "Preemptions of choices", stats.preemptions),
    ):
        counter = CounterMetricFamily(f"vllm:{name}", text, labels=tuple(labels))
        counter.add_metric(tuple(labels.values()), value)
        yield counter
    yield _finished(stats, labels)


def _renamed(family: Metric, name: str, labels: Mapping[str, str]) -> Metric:
    renamed = Metric(name, family.documentation, family.type)
    for sample in family.samples:
        suffix = sample.name.removeprefix(family.name)
        renamed.add_sample(name + suffix, {**labels, **sample.labels}, sample.value)
    return renamed


def _finished(stats: EngineStats, labels: Mapping[str, str]) -> CounterMetricFamily:
    counts = dict.fromkeys(REASONS.values(), 0)
    for reason, count in stats.finished.items():
        counts[REASONS[reason]] += count
    names = (*labels, "finished_reason")
    finished = CounterMetricFamily("vllm:request_success", "Choices that ended", labels=names)
    for name, count in counts.items():
        finished.add_metric((*labels.values(), name), count)
    return finished
