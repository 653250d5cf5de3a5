"""The server's figures and its engine's, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from spaninfer_engine import EngineState, EngineStats, OffloadStats, Usage

from spaninfer_serving.observability.figures import HISTOGRAMS, Figures
from spaninfer_serving.observability.vllm_metrics import vllm_families

NAMES = "spaninfer_"


class Metrics:
    """The figures of one server in Prometheus' format."""

    def __init__(
        self, figures: Figures, *, vllm_names: bool = False, engine_restarts: int = 0
    ) -> None:
        """`vllm_names`: say everything that vLLM has a name for under that, too."""
        self._figures, self._has_vllm_names = figures, vllm_names
        self._engine_restarts = engine_restarts
        self.count_response = figures.count_response

    def note_texts(self, lengths: Sequence[int], queued_s: float, lasted_s: float) -> None:
        """Note a request about texts of that many tokens each."""
        observe = self._figures.observe
        for length in lengths:
            observe("prompt_tokens", length)
        observe("queue_seconds", queued_s)
        observe("request_seconds", lasted_s)

    def first_tokens(self) -> tuple[list[float], list[int]]:
        """Return bounds in seconds, and how many first tokens came within each and no earlier
        one; the last number is of those beyond all bounds.
        """
        _, bounds = HISTOGRAMS["first_token_seconds"]
        return list(bounds), list(self._figures.histogram("first_token_seconds")[0])

    def text(self, stats: EngineStats) -> bytes:
        """Return everything in Prometheus' text format, with the engine's statistics."""
        families = [*engine_families(stats), *self._families()]
        if self._has_vllm_names:
            families += vllm_families(families, stats)
        registry = CollectorRegistry()
        registry.register(_Collected(families))
        return generate_latest(registry)

    def note(self, usage: Usage) -> None:
        """Note the counts and times of an answer that has ended."""
        observe = self._figures.observe
        observe("prompt_tokens", usage.prompt_len)
        observe("output_tokens", usage.output_len)
        if usage.scheduled_s is not None:
            observe("queue_seconds", usage.scheduled_s - usage.arrived_s)
        if usage.finished_s is not None:
            observe("request_seconds", usage.finished_s - usage.arrived_s)
        if usage.first_token_s is not None:
            observe("first_token_seconds", usage.first_token_s - usage.arrived_s)
            if usage.finished_s is not None and usage.output_len > 1:
                decoding_s = usage.finished_s - usage.first_token_s
                observe("token_seconds", decoding_s / (usage.output_len - 1))

    def _families(self) -> Iterator[Metric]:
        for name, (text, bounds) in HISTOGRAMS.items():
            counts, total = self._figures.histogram(name)
            limits = [*map(floatToGoString, bounds), "+Inf"]
            buckets = list(zip(limits, accumulate(counts), strict=True))
            yield HistogramMetricFamily(NAMES + name, text, buckets, total)
        yield CounterMetricFamily(
            f"{NAMES}engine_restarts",
            "Restarts of the engine's process after a crash",
            value=self._engine_restarts,
        )
        responses = CounterMetricFamily(
            f"{NAMES}http_responses",
            "Requests by HTTP status; 499: the client left first",
            labels=("status",),
        )
        for status, count in self._figures.responses().items():
            responses.add_metric((str(status),), count)
        yield responses


class _Collected(Collector):
    """Families that were collected before."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return them."""
        return self._families


def engine_families(stats: EngineStats) -> Iterator[Metric]:
    """Yield every figure of the engine."""
    yield _gauge("up", "1 while the engine takes requests", stats.state is EngineState.RUNNING)
    yield _gauge("running_requests", "Choices that are running", stats.running)
    yield _gauge("waiting_requests", "Choices that are waiting", stats.waiting)
    yield _spans(stats)
    for name, help_text, value in (
        ("generated_tokens", "Tokens generated", stats.generated_tokens),
        ("prefilled_tokens", "Prompt tokens computed", stats.prefilled_tokens),
        (
            "prefix_hit_tokens",
            "Prompt tokens found in the prefix cache",
            stats.prefix_hit_tokens,
        ),
        ("prefix_miss_tokens", "Prompt tokens not in the prefix cache", stats.prefix_miss_tokens),
        ("embedded_texts", "Texts turned into vectors or labels", stats.embedded_texts),
        ("preemptions", "Preemptions of choices", stats.preemptions),
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
        "Prompt tokens found in host memory or on disk",
        labels=("tier",),
    )
    hits.add_metric(("host",), stats.host_hit_tokens)
    hits.add_metric(("disk",), stats.disk_hit_tokens)
    yield hits
    spans = CounterMetricFamily(
        "spaninfer_offload_spans", "Spans by offloading event", labels=("event",)
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
