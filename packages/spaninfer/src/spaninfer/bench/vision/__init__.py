"""Benchmarks of a model that sees: conversations about pictures, and decodes beside them."""
