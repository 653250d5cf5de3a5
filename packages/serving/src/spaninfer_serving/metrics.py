"""Counters and histograms for Prometheus; the engine's own figures are read when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from spaninfer_engine import EngineState, EngineStats, OffloadStats, Usage

from spaninfer_serving.vllm_metrics import VllmNames

# Seconds; from a token of a small model to the prefill of a long prompt.
_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)


class Metrics:
    """The registry of one server."""

    def __init__(self, stats: Callable[[], EngineStats], *, vllm_names: bool = False) -> None:
        """`vllm_names`: say everything that vLLM has a name for under that, too."""
        self._registry = CollectorRegistry()
        self._registry.register(_EngineFigures(stats))
        self._others = CollectorRegistry()
        if vllm_names:
            self._others.register(VllmNames(self._registry, stats))

        def histogram(name: str, help_text: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(
                f"spaninfer_{name}", help_text, buckets=tuple(buckets), registry=self._registry
            )

        self._queued = histogram("queue_seconds", "Arrival to the first step", _LATENCY)
        self._first = histogram("first_token_seconds", "Arrival to the first token", _LATENCY)
        self._per_token = histogram(
            "token_seconds", "Mean time per token after the first", _LATENCY
        )
        self._whole = histogram("request_seconds", "Arrival to the end", _LATENCY)
        self._prompt = histogram("prompt_tokens", "Tokens of a prompt", _TOKENS)
        self._output = histogram("output_tokens", "Tokens of an answer", _TOKENS)

        self._responses = Counter(
            "spaninfer_http_responses",
            "Requests by HTTP status; 499: the client left first",
            ("status",),
            registry=self._registry,
        )
        self._by_status: dict[int, Counter] = {}

    def count_response(self, status: int) -> None:
        """Note how a request was answered."""
        child = self._by_status.get(status)
        if child is None:
            child = self._by_status[status] = self._responses.labels(str(status))
        child.inc()

    def note_texts(self, lengths: Sequence[int], queued_s: float, lasted_s: float) -> None:
        """Note a request about texts of so many tokens each."""
        for length in lengths:
            self._prompt.observe(length)
        self._queued.observe(queued_s)
        self._whole.observe(lasted_s)

    def first_tokens(self) -> tuple[list[float], list[int]]:
        """Return bounds in seconds, and how many first tokens came within each and no earlier
        one; the last number is of those beyond all bounds.
        """
        (family,) = self._first.collect()
        known = [
            (float(sample.labels["le"]), int(sample.value))
            for sample in family.samples
            if sample.name.endswith("_bucket")
        ]
        counts = [count for _, count in known]
        each = [count - before for before, count in zip([0, *counts], counts, strict=False)]
        return [bound for bound, _ in known[:-1]], each

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry) + generate_latest(self._others)

    def note(self, usage: Usage) -> None:
        """Note the counts and times of an answer that has ended."""
        self._prompt.observe(usage.prompt_len)
        self._output.observe(usage.output_len)
        if usage.scheduled_s is not None:
            self._queued.observe(usage.scheduled_s - usage.arrived_s)
        if usage.finished_s is not None:
            self._whole.observe(usage.finished_s - usage.arrived_s)
        if usage.first_token_s is not None:
            self._first.observe(usage.first_token_s - usage.arrived_s)
            if usage.finished_s is not None and usage.output_len > 1:
                decoding_s = usage.finished_s - usage.first_token_s
                self._per_token.observe(decoding_s / (usage.output_len - 1))


class _EngineFigures(Collector):
    """Reads the engine's statistics whenever Prometheus asks."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        """Yield every figure of one snapshot."""
        stats = self._stats()
        yield _gauge("up", "1 while the engine takes requests", stats.state is EngineState.RUNNING)
        yield _gauge("running_requests", "Choices that hold spans", stats.running)
        yield _gauge("waiting_requests", "Choices that wait to start", stats.waiting)
        yield _spans(stats)
        for name, help_text, value in (
            ("generated_tokens", "Tokens drawn", stats.generated_tokens),
            ("prefilled_tokens", "Prompt tokens computed", stats.prefilled_tokens),
            (
                "prefix_hit_tokens",
                "Prompt tokens found in the prefix cache",
                stats.prefix_hit_tokens,
            ),
            ("prefix_miss_tokens", "Prompt tokens not found there", stats.prefix_miss_tokens),
            ("embedded_texts", "Texts turned into vectors or labels", stats.embedded_texts),
            ("preemptions", "Requests that gave their spans to others", stats.preemptions),
            ("steps", "Steps computed", stats.steps),
            ("step_seconds", "Time spent in steps", stats.step_s),
        ):
            yield CounterMetricFamily(f"spaninfer_{name}", help_text, value=value)
        finished = CounterMetricFamily(
            "spaninfer_finished_requests", "Choices that ended", labels=("reason",)
        )
        for reason, count in stats.finished.items():
            finished.add_metric((reason.value,), count)
        yield finished
        if stats.offload is not None:
            yield from _offload(stats.offload)


def _offload(stats: OffloadStats) -> Iterable[Metric]:
    """Yield the figures of KV cache offloading."""
    hits = CounterMetricFamily(
        "spaninfer_offload_hit_tokens",
        "Tokens of prefixes found below the KV cache",
        labels=("tier",),
    )
    hits.add_metric(("host",), stats.host_hit_tokens)
    hits.add_metric(("disk",), stats.disk_hit_tokens)
    yield hits
    spans = CounterMetricFamily(
        "spaninfer_offload_spans", "Spans moved between tiers, or not", labels=("event",)
    )
    for event in ("stored", "loaded", "written", "read", "dropped", "failed", "expired"):
        spans.add_metric((event,), getattr(stats, event))
    yield spans
    yield _gauge("offload_host_spans", "Spans in host memory", stats.host_spans)
    yield _gauge("offload_disk_bytes", "Bytes of spans on disk", stats.disk_bytes)


def _gauge(name: str, help_text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"spaninfer_{name}", help_text, value=float(value))


def _spans(stats: EngineStats) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "spaninfer_spans", "Spans per cache group and state", labels=("group", "state")
    )
    for group, spans in enumerate(stats.spans):
        for state in ("in_use", "cached", "free", "held", "kept"):  # the last two are deprecated
            family.add_metric((str(group), state), getattr(spans, state))
    return family
