"""OpenTelemetry traces: a span per request, in the trace of its `traceparent` header.

The extra `otel` installs what this needs; OTEL_* variables say where spans go.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from spaninfer_engine import ConfigError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spaninfer_serving.observability.access_log import Tally


def make_tracer() -> Any:
    """Return a tracer whose spans go where OTEL_* says, by OTLP over HTTP; raises ConfigError."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as missing:
        raise ConfigError(
            f"--traces needs OpenTelemetry ({missing.name} is missing); "
            "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        ) from missing
    provider = TracerProvider(resource=Resource.create({"service.name": "spaninfer"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("spaninfer_serving", version("spaninfer-serving"))


class Traced:
    """ASGI middleware that puts a span around each request; to be put inside of the access log."""

    def __init__(self, app: ASGIApp, tracer: Any, model: str) -> None:
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, Status, StatusCode

        self._app, self._tracer, self._model = app, tracer, model
        self._extract, self._kind = extract, SpanKind.SERVER
        self._failed = Status(StatusCode.ERROR)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; its span ends with its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        carrier = {
            name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]
        }
        tally: Tally = scope["state"]["tally"]
        with self._tracer.start_as_current_span(
            f"{scope['method']} {scope['path']}", self._extract(carrier), self._kind
        ) as span:
            span.set_attribute("http.request.method", scope["method"])
            span.set_attribute("url.path", scope["path"])
            span.set_attribute("spaninfer.request.id", tally.request_id)

            async def noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= 500:
                        span.set_status(self._failed)
                await send(message)

            try:
                await self._app(scope, receive, noted)
            finally:
                if tally.prompt_tokens:
                    span.set_attributes(attributes_of(tally, self._model))


def attributes_of(tally: Tally, model: str) -> dict[str, str | int | float | Sequence[str]]:
    """Return what a request asked and took, by the semantic conventions for generative AI."""
    said: dict[str, str | int | float | Sequence[str]] = {
        "gen_ai.provider.name": "spaninfer",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": tally.prompt_tokens,
        "gen_ai.usage.output_tokens": tally.output_tokens,
    }
    if tally.asked is not None:
        sampling = tally.asked
        said |= {
            "gen_ai.operation.name": "chat" if tally.is_chat else "text_completion",
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.choice.count": sampling.n,
            "gen_ai.response.finish_reasons": tuple(tally.reasons),
        }
        if sampling.max_tokens is not None:
            said["gen_ai.request.max_tokens"] = sampling.max_tokens
    for name, lasted_s in (
        ("gen_ai.latency.time_in_queue", tally.queued_s),
        ("gen_ai.latency.time_to_first_token", tally.first_token_s),
    ):
        if lasted_s is not None:
            said[name] = lasted_s
    return said
