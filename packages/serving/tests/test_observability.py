"""Observability of a server: metrics, traces, JSON logs, and a dashboard."""

import io
import json
import logging
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from spaninfer_serving import Settings, create_app
from spaninfer_serving.observability import access_log
from spaninfer_serving.observability.json_log import REQUEST_ID, JsonFormatter

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana" / "spaninfer.json"
ASKED = {"prompt": "abc", "n": 2, "max_tokens": 5, "ignore_eos": True, "temperature": 0.5}
TEXT = "/v1/completions"


def figures(client):
    """Return every sample of /metrics by name and labels."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {(s.name, *sorted(s.labels.items())): s.value for f in families for s in f.samples}


def test_vllms_names_are_there_beside_ours_with_the_same_values(serving, at_rest):
    client = serving(metrics_names="both")
    client.post(TEXT, json=ASKED)
    at_rest()

    found = figures(client)

    labels = (("engine", "0"), ("model_name", "tiny"))
    for theirs, ours in (
        ("vllm:num_requests_running", "spaninfer_running_requests"),
        ("vllm:generation_tokens_total", "spaninfer_generated_tokens_total"),
        ("vllm:time_to_first_token_seconds_count", "spaninfer_first_token_seconds_count"),
        ("vllm:e2e_request_latency_seconds_sum", "spaninfer_request_seconds_sum"),
        ("vllm:request_generation_tokens_sum", "spaninfer_output_tokens_sum"),
    ):
        assert found[(theirs, *labels)] == found[(ours,)], theirs
    assert found[("vllm:kv_cache_usage_perc", *labels)] == 0
    ends = (labels[0], ("finished_reason", "length"), labels[1])
    assert found[("vllm:request_success_total", *ends)] >= 2
    assert ("vllm:num_requests_waiting", *labels) in found


def test_without_being_asked_for_there_are_only_our_names(serving):
    assert "vllm:" not in serving().get("/metrics").text


def test_every_metric_of_the_dashboard_exists(serving):
    client = serving()
    client.post(TEXT, json=ASKED)
    known = {name for name, *_ in figures(client)}
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))

    targets = [t["expr"] for p in dashboard["panels"] for t in p.get("targets", ())]
    named = {name for expr in targets for name in re.findall(r"spaninfer_\w+", expr)}
    named |= set(re.findall(r"spaninfer_\w+", json.dumps(dashboard["templating"])))

    assert len(named) > 15
    assert named - known == set()
    assert len({p["id"] for p in dashboard["panels"]}) == len(dashboard["panels"])


def test_a_line_of_the_json_log_is_an_object_with_the_request(serving):
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    access_log.log.addHandler(handler)
    before = access_log.log.level
    access_log.log.setLevel(logging.INFO)
    try:
        serving().post(TEXT, json=ASKED, headers={"X-Request-Id": "mine"})
    finally:
        access_log.log.removeHandler(handler)
        access_log.log.setLevel(before)

    [line] = [json.loads(line) for line in written.getvalue().splitlines()]
    assert line["request_id"] == "mine"
    assert (line["status"], line["method"], line["path"]) == (200, "POST", TEXT)
    assert (line["prompt_tokens"], line["output_tokens"]) == (3, 10)
    assert (line["level"], line["logger"]) == ("info", "spaninfer_serving.access_log")
    assert "abc" not in written.getvalue()


def test_what_is_logged_about_a_request_has_its_id_and_its_exception():
    record = logging.LogRecord(
        "spaninfer_serving.x", logging.ERROR, "x", 1, "no %s", ("ü\n",), None
    )
    REQUEST_ID.set("req-1")
    try:
        raise ValueError("why")
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)

    [line] = JsonFormatter().format(record).splitlines()

    said = json.loads(line)
    assert (said["message"], said["request_id"]) == ("no ü\n", "req-1")
    assert "ValueError: why" in said["exception"]
    REQUEST_ID.set(None)


@pytest.fixture
def traced(engine):
    """A client of a server whose spans are kept, and the spans."""
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    kept, provider = memory.InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    app = create_app(engine, Settings(), tracer=provider.get_tracer("test"))
    return TestClient(app, raise_server_exceptions=False), kept.get_finished_spans


def test_a_request_is_a_span_of_the_trace_it_came_with(traced):
    client, spans = traced
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

    client.post(TEXT, json=ASKED, headers={"traceparent": f"00-{trace}-{parent}-01"})

    [span] = spans()
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (trace, parent)
    assert (span.name, span.kind.name) == (f"POST {TEXT}", "SERVER")
    said = dict(span.attributes)
    assert said["gen_ai.operation.name"] == "text_completion"
    assert (said["gen_ai.request.model"], said["gen_ai.request.max_tokens"]) == ("tiny", 5)
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (3, 10)
    assert said["gen_ai.response.finish_reasons"] == ("length", "length")
    assert (said["gen_ai.request.temperature"], said["http.response.status_code"]) == (0.5, 200)
    assert 0 <= said["gen_ai.latency.time_in_queue"] <= said["gen_ai.latency.time_to_first_token"]
    assert "abc" not in str(said)


def test_streams_and_refusals_are_spans_too(traced):
    client, spans = traced

    client.post(TEXT, json=ASKED | {"stream": True})
    client.post(TEXT, json={})

    streamed, refused = spans()
    assert streamed.attributes["gen_ai.usage.output_tokens"] == 10
    assert refused.attributes["http.response.status_code"] == 400
    assert "gen_ai.usage.input_tokens" not in refused.attributes
    assert streamed.context.trace_id != refused.context.trace_id
