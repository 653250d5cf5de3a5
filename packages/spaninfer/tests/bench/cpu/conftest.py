"""What tests of the CPU benchmark share."""

import pytest
from spaninfer.bench.cpu import divergence


@pytest.fixture
def short_texts(monkeypatch):
    """Divergences are measured on texts of so few tokens."""
    caches = (divergence.texts, divergence._exact)
    monkeypatch.setattr(divergence, "TOKENS", 24)
    for cached in caches:
        cached.cache_clear()
    yield 24
    for cached in caches:
        cached.cache_clear()
