from assembled import engine, wait_until
from spaninfer_engine.core.stats import EngineState
from spaninfer_engine.request.request import FinishReason, SamplingParams


def test_a_snapshot_counts_what_was_done():
    prompt = list(range(10))
    sampling = SamplingParams(max_tokens=6, ignore_eos=True)

    with engine() as running:
        for _ in range(2):
            running.generate(prompt, sampling)
        wait_until(lambda: running.stats().span_usage == 0.0)  # given back behind the last output
        stats = running.stats()

    assert (stats.model, stats.state, stats.failure) == ("checked", EngineState.RUNNING, None)
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.generated_tokens == 12
    assert stats.prefilled_tokens == 10 + 2
    assert (stats.prefix_hit_tokens, stats.prefix_miss_tokens) == (8, 12)
    assert stats.steps == 12
    assert stats.finished[FinishReason.LENGTH] == 2
    (spans,) = stats.spans
    assert (spans.total, spans.in_use, stats.span_usage) == (100, 0, 0.0)
    assert spans.cached == 3 + 1  # of 15 positions each; the answers differ from the third span on
    assert spans.free == 96
