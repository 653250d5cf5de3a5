"""Attention over a KV cache that lies in spans."""
