from dataclasses import replace

import pytest
from spaninfer_engine.cache.memory_plan import (
    Demand,
    Stored,
    fit,
    longest,
    span_bytes,
    spans_per_request,
)
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.spec.nodes import CacheGroup

FULL = CacheGroup(0, (0, 2), kv_heads=2, key_size=8, value_size=8)
WINDOW = CacheGroup(1, (1, 3), kv_heads=2, key_size=8, value_size=8, window=10)
LATENT = CacheGroup(0, (0,), kv_heads=1, key_size=12, value_size=8, values_in_keys=True)
DEMAND = Demand(max_len=100, max_running=4, step_tokens=6)


def test_a_span_holds_keys_and_values_of_all_layers_of_its_group():
    assert span_bytes(FULL, span_len=4, stored=Stored(16)) == 2 * 2 * (8 + 8) * 4 * 2


def test_latents_are_stored_once():
    assert span_bytes(LATENT, span_len=4, stored=Stored(32)) == 12 * 4 * 4


def test_codes_have_scales_of_their_own_for_keys_and_for_values():
    stored = Stored(4, scale_bytes=8)

    assert span_bytes(FULL, 4, stored) == 2 * 2 * (4 + 8 + 4 + 8) * 4
    assert span_bytes(LATENT, 4, stored) == (8 + 8) * 4, "padded to whole float32"
    with_rotary = replace(stored, latent_scales=2)
    assert span_bytes(LATENT, 4, with_rotary) == (8 + 8 + 8) * 4
    assert span_bytes(FULL, 4, with_rotary) == span_bytes(FULL, 4, stored)


def test_a_window_group_needs_the_window_and_a_step():
    assert spans_per_request(FULL, 4, DEMAND) == 25
    assert spans_per_request(WINDOW, 4, DEMAND) == 5


def test_plenty_of_memory_gives_what_the_running_requests_can_use():
    counts = fit([FULL, WINDOW], budget=1 << 40, span_len=4, stored=Stored(32), demand=DEMAND)

    assert counts == (100, 20)


def test_little_memory_is_shared_in_proportion_and_never_exceeded():
    sizes = [span_bytes(group, 4, Stored(32)) for group in (FULL, WINDOW)]
    budget = 2 * (25 * sizes[0] + 5 * sizes[1]) + 100

    counts = fit([FULL, WINDOW], budget=budget, span_len=4, stored=Stored(32), demand=DEMAND)

    assert counts == (50, 10)


def test_memory_for_less_than_one_request_is_refused_with_the_numbers():
    with pytest.raises(ConfigError, match=r"one request of 100 tokens needs 25,600 bytes.*9,000"):
        fit([FULL], budget=9000, span_len=4, stored=Stored(32), demand=DEMAND)


def test_the_longest_request_is_the_one_that_fits_exactly():
    sizes = {"span_len": 4, "stored": Stored(32), "step_tokens": 6}
    size = span_bytes(FULL, 4, Stored(32))

    assert longest([FULL], budget=5 * size, max_len=100, **sizes) == 20
    assert longest([FULL], budget=5 * size - 1, max_len=100, **sizes) == 16
    assert longest([FULL], budget=1 << 40, max_len=100, **sizes) == 100


def test_memory_for_less_than_a_span_is_refused_with_what_a_span_takes():
    sizes = {"span_len": 4, "stored": Stored(32)}
    size = span_bytes(FULL, **sizes)
    most = longest([FULL], budget=size - 1, max_len=100, step_tokens=6, **sizes)

    with pytest.raises(
        ConfigError, match=rf"one request of 1 token needs {size:,} bytes.*; raise memory$"
    ):
        fit([FULL], budget=size - 1, demand=Demand(most, 4, 6), **sizes)


def test_a_window_group_does_not_limit_the_length_once_the_window_fits():
    budget = 5 * span_bytes(WINDOW, 4, Stored(32))

    assert (
        longest(
            [WINDOW], budget=budget, span_len=4, stored=Stored(32), max_len=10**6, step_tokens=6
        )
        == 10**6
    )
