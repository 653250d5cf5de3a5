"""What tests of the CPU benchmark share."""

import pytest
from spaninfer.bench.cpu import divergence


@pytest.fixture
def short_texts(monkeypatch):
    """Divergences are measured on three texts of so few tokens."""
    caches = (divergence.texts, divergence._exact, divergence.divergence_of)
    monkeypatch.setattr(divergence, "TOKENS", 24)
    monkeypatch.setattr(divergence, "REQUESTS", divergence.REQUESTS[:3])
    for cached in caches:
        cached.cache_clear()
    yield 24
    for cached in caches:
        cached.cache_clear()
